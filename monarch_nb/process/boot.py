"""Waiting for processes to come up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch_nb.process import remote_errors
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future
from monarch_nb.process.process import Proc, Wait, Waiter
from monarch_nb.process.supervision.supervision import MeshFailure

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.supervision.mesh_state import ProcsState


class BootCall(Future[bool], Waiter):
    """Waits for processes to say that they are up (`booted`)."""

    __slots__ = ("_mesh", "_missing", "_port", "_proc")

    def begin(self, proc: Proc, state: ProcsState, ranks: list[int]) -> None:
        """Expect these ranks."""
        self._proc = proc
        self._mesh = state
        self._missing = {state.processes[rank]: rank for rank in ranks}
        self._port = proc.new_port()
        proc.ports[self._port] = self.deliver
        state.boot_port = self._port
        if not self._missing:
            self._set_result(True)

    def deliver(self, message: Message) -> None:
        """A rank is up, or its bootstrap function raised."""
        rank = self._missing.pop(message.source, None)
        if rank is None:
            return
        body, payload = message.payload, message.buffers
        self._mesh.pids[rank] = int.from_bytes(bytes(body)[:8], "little")
        if payload:
            self._end()
            self._arrive((rank, bytes(payload[0])))
        elif not self._missing:
            self._end()
            self._set_result(True)

    def _decode(self, content: Any) -> bool:
        rank, payload = content
        raise remote_errors.unpack(
            payload, what=remote_errors.SETUP, rank=rank, size=len(self._mesh.processes)
        )

    def _end(self) -> None:
        self._proc.ports.pop(self._port, None)

    def wait_for_people(self) -> Wait:
        mesh = self._mesh
        missing = tuple(sorted(self._missing.copy().values()))
        return Wait("start", mesh.name, missing, len(mesh.processes), None)

    def waits_for(self, process: int) -> bool:
        return process in self._missing

    def abandon(self, ended: Exit) -> None:
        for process in list(self._missing)[:1]:
            self.lost(Exit(process, reason=ended.reason))

    def lost(self, ended: Exit) -> None:
        rank = self._missing.pop(ended.process)
        self._end()
        failure = MeshFailure(self._mesh, [rank], ended.describe(), ended=ended)
        self._set_exception(failure.error(f"{self._mesh.name}.start"))
