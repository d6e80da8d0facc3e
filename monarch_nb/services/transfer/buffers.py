"""`Buffers`: what this process has registered for others to read and write, and the service for
those that cannot reach it by themselves.

Rules: a buffer belongs to the actor that registered it (or to the root) and goes with it; requests
are checked against what is registered here, whatever they say; the inbox thread serves them, as
long as the actors are busy, chunk by chunk. Memory on a GPU is served by a copier thread.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.actors import DropBuffer, ReadBuffer, WriteBuffer
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.data import device, onesided
from monarch_nb.data.memory import Memory
from monarch_nb.data.registry import Place, Registry
from monarch_nb.net.threads import helper_thread
from monarch_nb.process.process import Proc

if TYPE_CHECKING:
    from monarch_nb.actors.hosting import Hosting

DROPPED: Final = "dropped"
OUTSIDE: Final = "outside"
THREADS: Final = 2
NICE: Final = 5  # who waits for the answer to a call goes first: 1.1 x its idle time, else 2 x


class Copiers:
    """Threads that copy, so that neither an event loop nor the inbox thread does.

    They run jobs, which must not raise, in the order in which they came. Two are enough: together
    they reach what the memory of a socket gives to one reader. They start with the first job and
    never hold the interpreter for long: copies are in C.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if not self._threads:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._threads:
                return
            for number in range(THREADS):
                name = f"monarch-copy-{number}"
                thread = helper_thread(self._work, name)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(1)


class Buffers:
    """Of one process; made with its runtime, the page at the first buffer."""

    def __init__(self, proc: Proc, hosting: Hosting) -> None:
        self.copiers = Copiers()
        self._proc = proc
        self._registry: Registry | None = None
        self._lock = threading.Lock()
        hosting.on_ended.append(self.drop_of)

    def add(self, memory: Memory, owner: int) -> Place:
        with self._lock:
            if self._registry is None:
                onesided.allow_copies()
                self._registry = Registry(self._proc.id)
        return self._registry.add(memory, owner)

    def find(self, serial: int) -> Memory | None:
        return None if self._registry is None else self._registry.find(serial)

    def drop(self, serial: int) -> None:
        if self._registry is not None:
            self._registry.drop(serial)

    def drop_of(self, owner: int) -> None:
        if self._registry is not None:
            self._registry.drop_of(owner)

    def statistics(self) -> dict[str, int]:
        empty = {"buffers": 0, "bytes": 0, "leaving": 0}
        return empty if self._registry is None else self._registry.statistics()

    def close(self) -> None:
        self.copiers.close()
        if self._registry is not None:
            self._registry.close()

    # the service, inbox thread

    def on_read(self, wanted: ReadBuffer, message: Message) -> None:
        """Send a part of a buffer."""
        start, size = wanted.offset, wanted.size
        memory = self._asked_for(wanted, message, size, write=False)
        if memory is None:
            return
        if memory.view is not None:
            self._send(message, memory.view[start : start + size])
            return

        def fetch() -> None:
            staged = device.staging(size)
            device.copy(staged, device.part(memory, start, size))
            assert staged.view is not None
            self._send(message, staged.view)

        self.copiers.put(fetch)

    def on_write(self, wanted: WriteBuffer, message: Message) -> None:
        """Fill a part of a buffer."""
        chunk = self._proc.payloads.buffer_of(message)
        memory = self._asked_for(wanted, message, chunk.nbytes, write=True)
        if memory is None:
            return
        start = wanted.offset
        if memory.view is not None:
            memory.view[start : start + chunk.nbytes] = chunk
            self._proc.answer(message, Done())
            return

        def store() -> None:
            source = Memory(0, chunk.nbytes, False, chunk, None)
            device.copy(device.part(memory, start, chunk.nbytes), source)
            self._proc.answer(message, Done())

        self.copiers.put(store)

    def on_drop(self, wanted: DropBuffer, message: Message) -> None:
        """Let go of a buffer."""
        self.drop(wanted.serial)
        self._proc.answer(message, Done())

    def _asked_for(
        self, wanted: ReadBuffer | WriteBuffer, message: Message, size: int, *, write: bool
    ) -> Memory | None:
        # The memory, if it is registered and reaches that far; else the answer says why not
        memory = self.find(wanted.serial)
        if memory is None:
            self._proc.answer(message, Refused("not found", DROPPED))
            return None
        try:
            onesided.check(memory, wanted.offset, size, write=write)
        except onesided.Outside as error:
            self._proc.answer(message, Refused(str(error), OUTSIDE))
            return None
        return memory

    def _send(self, message: Message, chunk: memoryview) -> None:
        self._proc.answer(message, Done(), self._proc.payloads.encode_buffer(chunk, message.source))
