"""Who it is that a rank has met, and whether they live.

Gloo tells a death to some members of a group only, and the others would wait. So a rank asks to be
told of the ends of those that it has met: its agent knows of this host, the controller of others.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.net.threads import helper_thread

if TYPE_CHECKING:
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc

MOMENT_S: Final = 1.0
"""A connection ends before its process does: so much later its end is known."""
_POLL_S: Final = 0.005
_NAMES: Final = Path("/proc/self/ns/pid")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Peer(NamedTuple):
    """A process of the mesh: its id there, its number in the system, and where that has a
    meaning."""

    process: int
    pid: int
    home: str

    @staticmethod
    def myself(process: int) -> Peer:
        return Peer(process, os.getpid(), f"{_NAMES.readlink()} {_BOOT.read_text().strip()}")

    def to_text(self) -> str:
        return f"{self.process} {self.pid} {self.home}"

    @staticmethod
    def from_text(text: str) -> Peer:
        process, pid, home = text.split(" ", 2)
        return Peer(int(process), int(pid), home)


class PeerDeaths:
    """Deaths of the processes that this one has met. `on_death` is called after each, on a
    thread."""

    def __init__(self, proc: Proc, on_death: Callable[[], None]) -> None:
        self._proc = proc
        self._on_death = on_death
        self._met: set[int] = set()
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def watch(self, peers: Iterable[Peer]) -> None:
        """Be told of the ends of these."""
        processes = {each.process for each in peers}
        if not self._met:
            helper_thread(self._wait, "monarch-peer-deaths").start()
        self._met |= processes
        self._proc.watch_all(processes)
        if not processes.isdisjoint(self._proc.dead):
            self._news.put(None)

    def on_exit(self, ended: Exit) -> None:
        """Note that a process has ended. The inbox thread."""
        if ended.process in self._met:
            self._news.put(None)

    def _wait(self) -> None:
        while True:
            self._news.get()
            self._on_death()

    def among(self, peers: Mapping[int, Peer]) -> list[int]:
        """Return the ranks that are dead."""
        dead = self._proc.dead
        return sorted(rank for rank, peer in peers.items() if peer.process in dead)

    def soon_among(self, peers: Mapping[int, Peer]) -> list[int]:
        """Do as `among`, but wait for a moment until it is known: the end of one is likely."""
        deadline = time.monotonic() + MOMENT_S
        while not (lost := self.among(peers)) and peers and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return lost
