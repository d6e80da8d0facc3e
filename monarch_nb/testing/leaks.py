"""What is left behind: processes, descriptors, threads, shared memory, folders, listening sockets.

Rule: it looks from outside, as `processes.py` does, and imports the standard library alone besides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from monarch_nb.testing import processes
from monarch_nb.testing.processes import describe_process, is_running, open_fds, read

SHM: Final = Path("/dev/shm")  # noqa: S108  what is left there is looked for, nothing is put there
_OUR_NAMES: Final = ("mnb-", "monarch")  # of shared memory and folders; libraries have their own
_OF_CUDA: Final = "/dev/nvidia"  # open from the first use of a GPU until the process ends
_PAUSES_S: Final = 0.01, 0.2  # the first and the longest: a look takes as long as the first


@dataclass(frozen=True, repr=False)
class Snapshot:
    """What exists at one moment and should exist no longer than the test that made it."""

    processes: dict[int, str] = field(default_factory=dict)
    fds: frozenset[tuple[int, str]] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()
    shared_memory: frozenset[str] = frozenset()
    temp_dirs: frozenset[str] = frozenset()
    listeners: frozenset[str] = frozenset()
    unmarked: bool = False

    @staticmethod
    def take(*, unmarked: bool = False) -> Snapshot:
        """Look now. `unmarked`: also orphans that run our code, and have lost the mark of every
        test session, are leaks; so is then what somebody starts elsewhere meanwhile."""
        return Snapshot(
            unmarked=unmarked,
            processes={pid: fields[19] for pid, fields in processes.processes().items()},
            fds=frozenset(_own_fds()),
            threads=frozenset(threading.enumerate()),
            shared_memory=frozenset(_shared_memory()),
            temp_dirs=frozenset(_temp_dirs()),
            listeners=frozenset(processes.listening_sockets()),
        )

    def with_what_a_client_keeps(self) -> Snapshot:
        """Return the same and what the client has made meanwhile for its own life: threads, memory
        to lend."""
        kept = {(fd, target) for fd, target in _own_fds() if target.startswith("/memfd:monarch_nb")}
        threads = frozenset(threading.enumerate())
        return dataclasses.replace(self, threads=threads, fds=self.fds | kept)

    def leaks(self) -> list[str]:
        """Return what is here now and was not then, one line each."""
        return [
            *self._leaked_processes(),
            *(f"file descriptor {fd}: {target}" for fd, target in _own_fds() - self.fds),
            *(
                f"thread {thread.name}"
                for thread in set(threading.enumerate()) - self.threads
                if thread.name.startswith("monarch-")
            ),
            *(
                f"shared memory {SHM / name}"
                for name in _shared_memory() - self.shared_memory
                if not _mapped_by_strangers(name)
            ),
            *(
                f"folder {name} with {sorted(_names(Path(name)))}"
                for name in _temp_dirs() - self.temp_dirs
                if not _is_of_strangers(Path(name))
            ),
            *self._leaked_listeners(),
        ]

    def assert_clean(self, within_s: float = 5.0) -> None:
        """Wait until all that came after this snapshot is gone; name what is left otherwise."""
        __tracebackhide__ = True
        deadline, (pause_s, longest_s) = time.monotonic() + within_s, _PAUSES_S
        while left := self.leaks():
            if time.monotonic() > deadline:
                self._end_leaked_processes()
                lines = "\n  ".join(left)
                raise AssertionError(f"left behind after {within_s:g} s:\n  {lines}")
            gc.collect()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)

    def _end_leaked_processes(self) -> None:
        # one test's leak shall not slow down or fail the next
        for pid in processes.session_processes() - self.processes.keys():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _leaked_processes(self) -> Iterator[str]:
        found = processes.processes()
        own = processes.below(os.getpid(), found)
        for pid, fields in found.items():
            if self.processes.get(pid) == fields[19] or pid == os.getpid():
                continue
            if pid in own or (fields[0] != "Z" and self._is_ours(pid)):
                yield describe_process(pid)

    def _is_ours(self, pid: int) -> bool:
        return processes.is_marked(pid) or (self.unmarked and processes.is_stray(pid))

    def _leaked_listeners(self) -> Iterator[str]:
        table = processes.listening_sockets()
        if not (fresh := set(table) - self.listeners):
            return
        for pid in processes.session_processes() | {os.getpid()}:
            for inode in fresh & processes.socket_inodes(pid):
                yield f"listening socket {table[inode]} of {describe_process(pid)}"


def _own_fds() -> set[tuple[int, str]]:
    standard = {0, 1, 2}  # pytest puts files of its own in their place while it captures
    return {
        (fd, target)
        for fd, target in open_fds().items()
        if fd not in standard and not target.startswith(("/proc/", _OF_CUDA))
    }


def _shared_memory() -> set[str]:
    return {name for name in _names(SHM) if name.startswith(_OUR_NAMES)}


def _temp_dirs() -> set[str]:
    places = {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())}
    return {f"{each}/{name}" for each in places for name in _names(Path(each)) if _is_our(name)}


def _is_our(name: str) -> bool:
    return name.startswith(_OUR_NAMES)


def _mapped_by_strangers(name: str) -> bool:
    # another session on this machine uses it. What leaked is mapped by nobody, or by ours
    path = str(SHM / name)
    ours = processes.session_processes() | {os.getpid()}
    return any(
        path.encode() in read(pid, "maps") or path in open_fds(pid).values()
        for pid in set(processes.all_pids()) - ours
    )


def _is_of_strangers(folder: Path) -> bool:
    # the run dir of a living process that is none of ours
    with contextlib.suppress(OSError):
        owner = re.search(r"\d+", (folder / "owner").read_text())
        pid = int(owner[0]) if owner else 0
        return is_running(pid) and pid not in processes.session_processes() | {os.getpid()}
    return False


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
