"""Threads that copy, so that neither an event loop nor the inbox thread does.

Two are enough: together they reach what the memory of a socket gives to one reader, and a machine
has a process for each rank. They start with the first job and never hold the interpreter for long:
copies are in C.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final

from monarch_nb.net.threads import helper_thread

THREADS: Final = 2
NICE: Final = 5  # who waits for the answer to a call goes first: 1.1 x its idle time, else 2 x


class Copiers:
    """Run jobs, in the order in which they came. A job must not raise."""

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
