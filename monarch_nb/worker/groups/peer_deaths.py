"""Which ranks of a group have died, told by the kernel.

Ranks say which process they are when they meet (`myself`); a thread of each waits for the ends of
the others (pidfd). Gloo tells a death to some members only: the others would wait for ranks that
have given up. A process of another host, or of another container, cannot be watched from here.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

MOMENT_S: Final = 0.5
"""A connection ends before its process does: so much later its end is known."""
_POLL_S: Final = 0.005
_NAMES: Final = Path("/proc/self/ns/pid")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def myself() -> str:
    """This process, and where its number means something."""
    return f"{os.getpid()} {_home()}"


def _home() -> str:
    return f"{_NAMES.readlink()} {_BOOT.read_text().strip()}"


class PeerDeaths:
    """Of the processes that this one has met. `on_death` is called after each, on a thread."""

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._lock = threading.Lock()
        self._dead: set[str] = set()
        self._watched: dict[str, int] = {}  # pidfd by who it is
        self._ends: select.epoll | None = None

    def watch(self, processes: Iterable[str]) -> None:
        """Watch these. They are as `myself` has told; those of elsewhere are left alone."""
        home, me = _home(), myself()
        with self._lock:
            for each in processes:
                pid, _, place = each.partition(" ")
                if place == home and each != me and each not in self._watched:
                    self._add(each, int(pid))

    def _add(self, process: str, pid: int) -> None:
        if self._ends is None:
            self._ends = select.epoll()
            threading.Thread(target=self._wait, name="monarch-peer-deaths", daemon=True).start()
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:  # between the meeting and now
            self._watched[process] = -1
            self._dead.add(process)
            return
        self._watched[process] = end
        self._ends.register(end, select.EPOLLIN)

    def _wait(self) -> None:
        assert self._ends is not None
        while True:
            ended = {end for end, _ in self._ends.poll()}
            with self._lock:
                for process, end in self._watched.items():
                    if end in ended:
                        self._ends.unregister(end)
                        os.close(end)
                        self._watched[process] = -1
                        self._dead.add(process)
            self._on_death()

    def among(self, processes: Mapping[int, str]) -> list[int]:
        return sorted(rank for rank, process in processes.items() if process in self._dead)

    def soon_among(self, processes: Mapping[int, str]) -> list[int]:
        """As `among`, where the end of one is likely: waits for a moment until it is known."""
        deadline = time.monotonic() + MOMENT_S
        while not (lost := self.among(processes)) and processes and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return lost
