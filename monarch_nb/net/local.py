"""The processes of this host, as its gateway writes to them what has come from others.

Large values are put into shared memory once, for all processes that they are for, and lent to these
until they let go of them or end. Where there is no room, or nobody lends, they are written to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from monarch_nb.core.casting import Cast
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.core.wire.leases import Handle, Lendable
from monarch_nb.errors import LimitError
from monarch_nb.net import wire
from monarch_nb.net.hosts.bulk.joiner import Room
from monarch_nb.net.loop import Loop
from monarch_nb.net.outbox import Outbox, StreamOutbox, open_queue
from monarch_nb.net.streams import Stream

Take = Callable[[Sequence[Buffer]], None]


class Lender(Protocol):
    """Puts buffers of at least `threshold_bytes` into memory that processes of this host map, and
    maps what they lend."""

    @property
    def threshold_bytes(self) -> int: ...
    def rooms(self, sizes: Sequence[int]) -> Sequence[Room]: ...
    def borrow(self, handle: Handle, on_release: Callable[[], None]) -> memoryview: ...
    def lend(self, buffers: Sequence[memoryview], holders: Sequence[int]) -> list[Handle]: ...
    def release(self, segment: int, holder: int) -> None: ...
    def forget(self, holder: int) -> None: ...
    def close(self) -> None: ...


class LocalProcesses:
    """Reached by their sockets in `run_dir`. All of it happens in the loop's thread.

    `watch(process)` has this told by `ended` when a process ends that something was lent to, or by.
    `here`: what takes the messages to processes that are this very one, by their ids.
    """

    def __init__(
        self,
        run_dir: Path,
        loop: Loop,
        lender: Lender | None,
        watch: Callable[[int], None],
        here: Mapping[int, Take],
    ) -> None:
        self._run_dir = run_dir
        self._loop = loop
        self._lender = lender
        self._watch = watch
        self._here = here
        self._context = wire.new_context()
        self._outboxes: dict[int, Outbox] = {}
        self._watched: set[int] = set()

    def deliver(self, process: int, bodies: Sequence[Buffer]) -> None:
        """Write a message to a process. Nobody changes it any more."""
        self._write(process, self._lent(bodies, [process]))

    def deliver_all(self, cast: Cast) -> None:
        """Write a message to each of these, with its rank."""
        processes = [process for run in cast.runs for process, _ in run.members()]
        lent = cast._replace(bodies=self._lent(cast.bodies, processes))
        for process, bodies in lent.messages():
            self._write(process, bodies)

    def watch(self, process: int) -> None:
        """Learn of its end."""
        if process not in self._watched and process not in self._here:
            self._watched.add(process)
            self._watch(process)

    def may_live(self, process: int) -> bool:
        """Tell whether a process that was watched has not ended."""
        return process in self._watched or process in self._here

    def release(self, segment: int, holder: int) -> None:
        """Take back what a process was lent."""
        if self._lender is not None:
            self._lender.release(segment, holder)

    def ended(self, process: int) -> None:
        """Take back all that it was lent, and write to it no more."""
        self._watched.discard(process)
        if (outbox := self._outboxes.pop(process, None)) is not None:
            outbox.close(0)
        if self._lender is not None:
            self._lender.forget(process)

    def drop(self) -> None:
        """Forget all of them: who had them spawned has gone."""
        for outbox in self._outboxes.values():
            outbox.close(0)
        self._outboxes.clear()
        self._watched.clear()
        if self._lender is not None:
            self._lender.close()

    def close(self) -> None:
        wire.end_context(self._context)

    def _write(self, process: int, bodies: Sequence[Buffer]) -> None:
        if (take := self._here.get(process)) is not None:
            take(bodies)
            return
        outbox = self._outboxes.get(process)
        if outbox is None:
            outbox = self._outboxes[process] = self._open(process)
        outbox.send_frames(bodies, is_constant=True)

    def _open(self, process: int) -> Outbox:
        if process & frames.SERVICE_BIT:
            return open_queue(self._context, self._run_dir, process)
        return StreamOutbox(Stream(self._run_dir, process, self._loop))

    def _lent(self, bodies: Sequence[Buffer], holders: Sequence[int]) -> Sequence[Buffer]:
        # the same message, with its large buffers in shared memory
        if self._lender is None or len(bodies) == 1:
            return bodies
        large = self._lender.threshold_bytes
        if all(memoryview(each).nbytes < large for each in bodies[1:]):
            return bodies
        message = Lendable.of(bodies)
        if message is None or not any(len(each) >= large for each in message.buffers):
            return bodies
        for process in holders:
            self.watch(process)
        is_large = [len(each) >= large for each in message.buffers]
        pairs = zip(message.buffers, is_large, strict=True)
        try:
            handles = iter(self._lender.lend([each for each, lend in pairs if lend], holders))
        except LimitError:
            return bodies
        return message.lent([next(handles) if lend else None for lend in is_large])
