"""Processes as /proc tells of them: who descends from whom, who is gone, what each has to itself.

The oracle of the benchmarks: it asks none of the measured systems. A process is named by its id
or found by the mark that its ancestor was started with; nothing is ever ended by its name. It has
no part of monarch_nb.testing, which does the same for tests: whoever measures another system does
not load ours into its process.
"""

import os
import select
import signal
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.timing import now

MARK = "MONARCH_NB_BENCH"  # in the environment of everything that one measure starts
CLEANER = b"multiprocessing.resource_tracker"
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def marked(mark: str) -> set[int]:
    """Every live process whose environment at its start held MARK=mark."""
    wanted = f"{MARK}={mark}".encode()
    return {pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0") and alive(pid)}


def descendants(root: int) -> set[int]:
    children = defaultdict(list)
    for pid in _pids():
        children[_parent(pid)].append(pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        fresh = [pid for pid in children[todo.pop()] if pid not in found]
        found.update(fresh)
        todo.extend(fresh)
    return found


def alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def private_bytes(pid: int) -> int:
    """What would be free again without this process (USS)."""
    lines = _read(pid, "smaps_rollup").decode().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def wait_gone(pids: Iterable[int], within_s: float) -> set[int]:
    """Wait until none of `pids` runs; the ones that still do when the time is over."""
    end = now() + within_s
    left = dict(_pidfds(pids))
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (wait_s := end - now()) > 0:
        for fd, _ in poll.poll(wait_s * 1000):
            poll.unregister(fd)
            os.close(fd)
            del left[fd]
    for fd in left:
        os.close(fd)
    return set(left.values())


def end_all(mark: str) -> int:
    """SIGKILL whoever carries the mark until nobody does; how many there were.

    Those that only clean up after others go last: they remove names from /dev/shm, then end.
    """
    ended: set[int] = set()
    for _ in range(10):
        found = marked(mark) - {os.getpid()}
        if not found:
            break
        ended |= found
        cleaners = {pid for pid in found if CLEANER in _read(pid, "cmdline")}
        for pid in found - cleaners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in wait_gone(found, within_s=5) & cleaners:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return len(ended)


class Flag:
    """A named pipe on which a process anywhere on this host says "I am there"."""

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder) / f"flag-{os.urandom(6).hex()}")
        os.mkfifo(self.path, 0o600)
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, within_s: float) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(within_s * 1000):
            raise TimeoutError(f"no rank was busy within {within_s:g} s")

    def close(self) -> None:
        os.close(self._fd)
        Path(self.path).unlink()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _read(pid: int, name: str) -> bytes:
    with suppress(*GONE):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: state, parent, ..."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _pidfds(pids: Iterable[int]) -> Iterable[tuple[int, int]]:
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.pidfd_open(pid), pid
