"""A buffer of a process that cannot be reached by itself (another host, say), read or written with
its help: its inbox thread serves chunks, over the links that are there.

Rules: a few chunks are on their way at a time, so that other messages wait for no more than these;
the end of the owner, the deadline and the caller's interrupt each end it, once; what comes after
the end is dropped and written nowhere. What is read is put into its place by the copiers, while the
inbox thread receives what follows; the end waits for them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.actors import ReadBuffer, WriteBuffer
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.data.memory import Memory, fill
from monarch_nb.data.onesided import Dropped, Outside
from monarch_nb.data.registry import Place
from monarch_nb.errors import MeshError, RemoteProtocolError
from monarch_nb.process.exit import Exit
from monarch_nb.process.process import Proc, Waiter, answer_of
from monarch_nb.services.transfer.buffers import DROPPED

CHUNK_BYTES: Final = 1 << 23
"""Each is lent at one end and taken at the other: of shorter ones that takes as long as the way."""
WINDOW: Final = 3


def time_limit(seconds: float, action: Callable[[], None]) -> threading.Timer:
    made = threading.Timer(min(max(0.0, seconds), threading.TIMEOUT_MAX), action)
    made.daemon, made.name = True, "monarch-transfer-limit"
    return made


class Served(Waiter):
    """One transfer between `memory`, which is main memory, and the buffer at `place`.

    `later` runs something in another thread, soon. `then(error)` is called once, at the end, with
    None for success.
    """

    def __init__(
        self,
        proc: Proc,
        place: Place,
        memory: Memory,
        size: int,
        *,
        write: bool,
        deadline: float,
        later: Callable[[Callable[[], None]], None],
        then: Callable[[BaseException | None], None],
    ) -> None:
        assert memory.view is not None
        self._proc = proc
        self._place = place
        self._memory = memory
        self._view = memory.view
        self._size = size
        self._write = write
        self._later = later
        self._then = then
        self._lock = threading.Lock()
        self._landing = 0  # chunks that are being put into their places
        self._is_over = False
        self._error: BaseException | None = None
        self._count = -(-size // CHUNK_BYTES)
        self._left = self._count
        self._numbers = itertools.count()
        self._port = proc.new_port()
        self._limit = time_limit(deadline - time.monotonic(), self._expired)

    def start(self) -> None:
        self._proc.waiting[self._port] = self
        self._limit.start()
        if (gone := self._proc.dead.get(self._place.process)) is not None:
            self.lost(gone)
            return
        for _ in range(WINDOW):
            self._ask()

    def deliver(self, message: Message) -> None:
        if self._port not in self._proc.waiting:
            self._proc.discard(message)
            return
        answer = answer_of(Done, message)
        if isinstance(answer, Refused):
            kind = Dropped if answer.kind == DROPPED else Outside
            self.finish(kind(answer.error))
            return
        self._ask()
        if self._write:
            self._moved(None)
            return
        with self._lock:
            self._landing += 1
        self._later(partial(self._land, message))

    def finish(self, error: BaseException | None) -> None:
        """End it, once, whoever comes first. Any thread."""
        if self._proc.waiting.pop(self._port, None) is not None:
            self._limit.cancel()
            with self._lock:
                self._is_over, self._error = True, error
            self._conclude()

    def _land(self, message: Message) -> None:
        error = None
        if self._is_over:
            self._proc.discard(message)
        else:
            error = self._take(message)
        del message  # with what was lent
        with self._lock:
            self._landing -= 1
        self._moved(error)
        self._conclude()

    def _moved(self, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            left = self._left
        if error is not None or not left:
            self.finish(error)

    def _conclude(self) -> None:
        with self._lock:
            if self._landing or not self._is_over:
                return
            self._landing = -1  # never again
        self._then(self._error)

    def awaited(self) -> tuple[int]:
        return (self._place.process,)

    def lost(self, ended: Exit) -> None:
        self.finish(ended.error())

    def abandon(self, ended: Exit) -> None:
        self.lost(ended)

    def _expired(self) -> None:
        done = (self._count - self._left) * CHUNK_BYTES
        self.finish(TimeoutError(f"{done} of {self._size} bytes had been moved when time was up"))

    def _ask(self) -> None:
        number = next(self._numbers)
        if number >= self._count:
            return
        process, serial, offset = self._place.process, self._place.serial, number * CHUNK_BYTES
        chunk = self._chunk(number)
        if self._write:
            payload = self._proc.payloads.encode_buffer(chunk, process)
            wanted = WriteBuffer(serial, offset)
            self._proc.control(process, wanted, payload=payload, reply=self._port, rank=number)
        else:
            part = ReadBuffer(serial, offset, chunk.nbytes)
            self._proc.control(process, part, reply=self._port, rank=number)

    def _chunk(self, number: int) -> memoryview:
        return self._view[number * CHUNK_BYTES : min((number + 1) * CHUNK_BYTES, self._size)]

    def _take(self, message: Message) -> MeshError | None:
        try:
            data = self._proc.payloads.buffer_of(message)
            if message.rank >= self._count or len(data) != self._chunk(message.rank).nbytes:
                return RemoteProtocolError(f"a chunk that is not the one asked for: {message!r}")
            fill(self._memory, message.rank * CHUNK_BYTES, data)
        except MeshError as error:  # who has lent it has ended, and the wait with it
            return error
        return None
