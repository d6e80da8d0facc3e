"""The seam to the runtime below: what the notebook asks of it, and nothing else.

Rule of the file: the real runtime is imported at its first use, so that a kernel starts without it.
Tests put a fake of the same shape in its place (`session.runtime = FakeRuntime()`).
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from monarch_nb import control
from monarch_nb.core.stacks import Frame


class Outcome(Protocol):
    """How a cell ended on one rank: an error record, or what it displays, or neither."""

    @property
    def status(self) -> str: ...
    @property
    def error(self) -> Any: ...
    @property
    def data(self) -> Mapping[str, Any] | None: ...


class CellRun(Protocol):
    """A cell that runs on the ranks of a mesh."""

    @property
    def mesh(self) -> Any: ...
    @property
    def outcomes(self) -> Mapping[int, Outcome]: ...
    @property
    def pending(self) -> tuple[int, ...]: ...
    @property
    def started_s(self) -> float: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def interrupt(self) -> None: ...


class Comms(Protocol):
    """Widget messages of ranks, both ways."""

    def listen(self, listener: Any) -> None: ...
    def send(self, process: int, body: Mapping[str, Any], buffers: Sequence[bytes]) -> None: ...


class Client(Protocol):
    """The controller's end of every mesh."""

    tag: int

    @property
    def comms(self) -> Comms: ...
    def on_output(self, callback: Callable[[Any], None]) -> None: ...
    def on_failure(self, callback: Callable[[Any], None]) -> None: ...
    def snapshot(self) -> Any: ...
    def interrupt(self, tag: int | None) -> None: ...
    def shutdown(self, timeout_s: float) -> None: ...


class Runtime(Protocol):
    """Everything the notebook needs from below."""

    def running_client(self) -> Client | None: ...
    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]: ...
    def prewarm(self) -> None: ...
    def spawn(self, sizes: Mapping[str, int], name: str) -> Any: ...
    def is_mesh(self, value: object) -> bool: ...
    def is_stopped(self, mesh: Any) -> bool: ...
    def lost(self, mesh: Any) -> Sequence[int]: ...
    def kill(self, mesh: Any, ranks: Iterable[int]) -> None: ...
    def whereabouts(self, mesh: Any, ranks: Iterable[int]) -> Mapping[int, Sequence[Frame]]: ...
    def run_cell(
        self, mesh: Any, code: str, *, filename: str, first_line: int, tag: int
    ) -> CellRun: ...


class MonarchRuntime:
    """The real one."""

    def running_client(self) -> Client | None:
        """The client, if anything has started it."""
        module = sys.modules.get("monarch_nb.control.client")
        running = getattr(module, "running_client", None)  # `prewarm` may be importing it
        found: Client | None = running() if running else None
        return found

    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when a client starts: the cell that starts it is heard from its first line.

        Returns what takes the callback back.
        """
        callbacks: list[Callable[[], object]] = vars(control).setdefault("when_started", [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def prewarm(self) -> None:
        """Start what the first mesh needs, in the background: it is to come up at once."""
        threading.Thread(target=_prewarm, name="monarch-prewarm", daemon=True).start()

    def spawn(self, sizes: Mapping[str, int], name: str) -> Any:
        """Start ranks on this host; does not wait for them."""
        from monarch_nb import this_host

        return this_host().spawn_procs(per_host=dict(sizes), name=name)

    def is_mesh(self, value: object) -> bool:
        """Whether this is a mesh of processes, on which cells can run."""
        module = sys.modules.get("monarch_nb.actors.proc_mesh")
        return isinstance(value, getattr(module, "ProcMesh", ()))  # `prewarm` may be importing it

    def is_stopped(self, mesh: Any) -> bool:
        """Whether somebody has stopped it."""
        return mesh._state.ended is not None

    def lost(self, mesh: Any) -> Sequence[int]:
        """The ranks that are lost and not healed."""
        return [rank for rank in mesh.ranks if rank in mesh._state.lost]

    def kill(self, mesh: Any, ranks: Iterable[int]) -> None:
        """End the processes of these ranks. Returns at once."""
        from monarch_nb.control import client, stopping

        stopping.kill(client.client().proc, mesh, ranks)

    def whereabouts(self, mesh: Any, ranks: Iterable[int]) -> Mapping[int, Sequence[Frame]]:
        """Where the main threads of these ranks are, innermost call first; of those that can say
        it."""
        from monarch_nb.control import client, stopping

        return stopping.whereabouts(client.client().proc, mesh, ranks)

    def run_cell(
        self, mesh: Any, code: str, *, filename: str, first_line: int, tag: int
    ) -> CellRun:
        """Submit the code to every rank of the mesh and return at once."""
        from monarch_nb.control import cells

        run: CellRun = cells.run_cell(mesh, code, filename=filename, first_line=first_line, tag=tag)
        return run


def _prewarm() -> None:
    try:
        from monarch_nb.control import client

        client.prewarm()
    except Exception:  # noqa: BLE001  the first mesh fails in the same way, where the user looks
        traceback.print_exc(file=sys.__stderr__)
