"""Nobody outlives the owner: what the Linux kernel offers to end processes with their owner.

Every process below the owner is bound to it in two independent ways, and neither needs a thread or
a live interpreter:

- a signal at the death of the parent (PDEATHSIG). It is bound to the *thread* that forked, so only
  main threads fork. Fork clears it; exec keeps it.
- the end of a pipe that only an ancestor holds open: as SIGKILL from the kernel (`die_with_pipe`),
  or as EOF in a poll.

What a rank starts may leave its session, lose its parent and clear its environment. It cannot lose
its `tag`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC_VARIABLE: Final = "MONARCH_NB_PROC"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_RLIMIT_LOCKS: Final = 10  # means nothing since Linux 2.4.24, but fork and exec inherit it
_F_SETSIG: Final = 10
_PF_EXITING: Final = 4
_FLAGS: Final = 6  # where /proc/<pid>/stat has them, after the name
_STARTED: Final = 19
_GONE: Final = "ZXx"  # states there: ended, whoever reaps it
_LOOK_AGAIN_S: Final = 0.005
_TERM_S: Final = 3.0
_LOOK_S: Final = 0.01
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_libc: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int, parent: int) -> bool:
    """Have signal `number` sent to this process when the thread that forked it ends.

    False when the parent is gone already: then the signal will never come.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def wake_at_end_of(owner: int) -> None:
    """Have this process woken when its owner ends. Raises `ProcessLookupError` if it has ended.

    Not killed: an agent has to end what its ranks leave behind; SIGCONT wakes one that was stopped.
    It comes when the thread ends that has started this process: `is_ending` tells that from others.
    """
    if not die_with_parent(signal.SIGCONT, owner):
        raise ProcessLookupError("the owner is not the parent, or has ended")


@contextlib.contextmanager
def held_back(number: int) -> Iterator[None]:
    """Take a signal that comes meanwhile when this is over: what is made here is then whole, and
    somebody ends it. Unlike a mask it is not inherited by threads, nor by what they start. Does
    nothing outside the main thread, where no signal comes up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(number, lambda *_: came.append(number))
    try:
        yield
    finally:
        signal.signal(number, before)
    if came:
        signal.raise_signal(number)


def is_ending(process: int, thread: int) -> bool:
    """Return whether that thread of a process ends, or has ended.

    Where all threads of a process are killed, one that shares its memory with others ends at once;
    what wakes at the end of the process is told after its memory was taken down, which takes ten
    milliseconds with PyTorch loaded.
    """
    try:
        stat = Path(f"/proc/{process}/task/{thread}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(stat.rpartition(")")[2].split()[_FLAGS]) & _PF_EXITING)


def wait_while_ending(process: int, limit_s: float) -> None:
    """Wait so long for a process that is about to end: what it holds is given back one by one, the
    end of a pipe maybe long before a lock. Returns at once for one that is not about to."""
    try:
        ended = os.pidfd_open(process)  # of all its threads: the last one gives back
    except ProcessLookupError:
        return
    try:
        if is_ending(process, process):
            select.select([ended], [], [], limit_s)
    finally:
        os.close(ended)


def started_at(pid: int) -> int | None:
    """Return when a process has started, in clock ticks after this host's own start; None where
    there is none. With its number it means one process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in _GONE else int(fields[_STARTED])


def end_when_over(pid: int, started: int, limit_s: float) -> None:
    """Wait so long for the end of a process, whosever child it is; then ask it to end, and kill it
    in the end. `started`: by `started_at`, so that no other one of its number is meant."""
    for number, wait_s in ((0, limit_s), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
        deadline = time.monotonic() + wait_s
        if started_at(pid) == started:
            kill(pid, number)
        while started_at(pid) == started and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def adopt_orphans() -> None:
    """Make descendants that lose their parent children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_pipe(pipe: int, holder: int | None = None) -> int:
    """Have the kernel kill this process when the last writer of `pipe` is gone; needs no thread.

    `pipe` is a descriptor of process `holder`, or of this one. Returns the descriptor that has to
    stay open. Nothing may ever be written to the pipe.
    """
    # the owner of a signal belongs to the open file, which forks share: so open it anew
    fd = os.open(f"/proc/{holder or 'self'}/fd/{pipe}", os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a sandbox without F_SETSIG leaves the other way
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    return fd


def tag(proc: int) -> None:
    """Mark this process and all that it will ever start as belonging to rank `proc`."""
    with contextlib.suppress(OSError, ValueError):  # then PROC_VARIABLE alone has to tell
        _, hard = resource.getrlimit(_RLIMIT_LOCKS)
        resource.setrlimit(_RLIMIT_LOCKS, (proc, hard))


def tag_of(pid: int) -> int | None:
    """Return the rank that a process belongs to, or None: gone, or no mark of ours."""
    with contextlib.suppress(OSError):
        soft, _ = resource.prlimit(pid, _RLIMIT_LOCKS)
        if soft != resource.RLIM_INFINITY:
            return soft
    with contextlib.suppress(OSError, ValueError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == PROC_VARIABLE.encode():
                return int(value)
    return None


def children() -> set[int]:
    """Return the children of this process, adopted ones included, zombies included."""
    found: set[int] = set()
    try:
        for task in Path("/proc/self/task").iterdir():
            found.update(int(pid) for pid in (task / "children").read_text().split())
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN, or a thread that just ended
        return _children_by_search()
    return found


def _children_by_search() -> set[int]:
    own = str(os.getpid())
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (folder / "stat").read_text().rpartition(")")[2]
            if after_name.split()[1] == own:
                found.add(int(folder.name))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a child of ours that was not reaped yet; one that has ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(pid: int) -> None:
    """Kill what remains of the group that `pid` leads. Call it before `pid` is reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_children(within_s: float) -> bool:
    """Kill and reap every child, and theirs as they become ours. False if some would not end."""
    deadline = time.monotonic() + within_s
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while time.monotonic() < deadline:
            for pid in children():
                kill(pid)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return True
            signal.sigtimedwait({signal.SIGCHLD}, _LOOK_AGAIN_S)  # an orphan comes without a signal
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prefer_as_victim(score: int) -> None:
    """Let the out-of-memory killer take this process and its children before agent and kernel."""
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text(str(score))


def raise_file_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one. Returns what it was and what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft, soft
    return soft, hard


def lower_file_limit(soft: int) -> None:
    """Give this process, and the ranks that it forks, the soft limit that users expect."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")
