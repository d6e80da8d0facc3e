"""The run dir: where an owner's unix sockets live, and how dead owners' dirs are swept.

Rule: a dir is removed by others only if it is ours, carries our marker and its lock can be taken,
which means that all who hold it are dead: its owner, and the agent of a kept mesh. The lock is the
kernel's, so no crash leaves it taken.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from monarch_nb.errors import LaunchError
from monarch_nb.host import guard
from monarch_nb.net import wire
from monarch_nb.net.private import check_private

PREFIX: Final = "mnb-"
_OWNER: Final = "owner"
_MARKER: Final = b"monarch_nb run dir of process "
_SOCKET_NAME_BYTES: Final = len("/") + 16 + len(wire.STREAM_SUFFIX)
_RANDOM_BYTES: Final = 8  # of mkdtemp's
_END_S: Final = 5.0
_PID_DIGITS: Final = 16  # room for any process number, so that one overwrites another


class RunDir:
    """A run dir that this process holds, of mode 0700."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def own(self) -> None:
        """Become its owner, whom `owners` names: the one before has ended, or has no part in it."""
        os.pwrite(self._lock, _MARKER + f"{os.getpid():<{_PID_DIGITS}}".encode(), 0)

    def remove(self) -> None:
        """Remove the dir and give up the lock. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.leave()

    def leave(self) -> None:
        """Give up the lock, and leave the dir to who holds it besides. May be called again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def hold(path: Path) -> RunDir:
    """Hold the run dir of another process too: it is there until the last holder has ended.

    Raises `LaunchError` where it is gone, or none of ours.
    """
    try:
        check_private(path)
        lock = os.open(path / _OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:  # also AuthError
        raise LaunchError(f"the folder {path} of the mesh cannot be used: {error}") from None
    fcntl.flock(lock, fcntl.LOCK_SH)
    return RunDir(path, lock)


def new_lifeline(path: Path, owner: int) -> int:
    """Make what ends with this process, the owner of that id; the agent opens the other end."""
    fifo = _lifeline(path, owner)
    os.mkfifo(fifo, 0o600)
    return os.open(fifo, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)  # else it waits for a reader


def open_lifeline(path: Path, owner: int) -> int:
    """Return a descriptor that can be read, and has nothing in it, when that owner has ended.

    Raises `FileNotFoundError` where the owner has made none.
    """
    fifo = _lifeline(path, owner)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    fifo.unlink()
    return reader


def _lifeline(path: Path, owner: int) -> Path:
    return path / f"{owner:016x}.lifeline"


def new_run_dir() -> RunDir:
    """Make a run dir in a private place with a short path; sweep those of dead owners first.

    Raises `LaunchError` when there is no such place.
    """
    for base in _bases():
        sweep(base)
        with contextlib.suppress(OSError):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            return RunDir(path, _mark(path))
    raise LaunchError(
        f"no folder for sockets: none of {', '.join(map(str, _candidates()))} is writable and "
        "short enough. Set TMPDIR to a short path on a local disk."
    )


def sweep_all() -> None:
    """Remove the run dirs of dead owners wherever this process would make one.

    An owner that is about to end is waited for: its end may be known before its lock is given back.
    """
    for base in _bases():
        for path in _dirs(base):
            if (pid := _owner_of(path)) is not None:
                guard.wait_while_ending(pid, _END_S)
        sweep(base)


def sweep(base: Path) -> list[Path]:
    """Remove the run dirs in `base` whose owners are dead; returns them."""
    return [path for path in _dirs(base) if _remove_stale(path)]


def _dirs(base: Path) -> list[Path]:
    return [path for path in base.glob(f"{PREFIX}*") if _is_private(path)]


class Owner(NamedTuple):
    """A living process of this user that has a run dir and lets debuggers in."""

    pid: int
    path: Path
    command: str


def owners() -> list[Owner]:
    found: dict[int, Owner] = {}
    for base in _bases():
        for path in filter(wire.has_debug_server, _dirs(base)):
            pid = _owner_of(path)
            if pid is not None and psutil.pid_exists(pid):  # an agent may hold it alone
                found[pid] = Owner(pid, path, _command(pid))
    return list(found.values())


def _owner_of(path: Path) -> int | None:
    try:
        lock = os.open(path / _OWNER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        text = os.pread(lock, len(_MARKER) + _PID_DIGITS, 0)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # its owner lives
        return int(text.removeprefix(_MARKER)) if text.startswith(_MARKER) else None
    finally:
        os.close(lock)
    return None


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal, as by ctrl-Z."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _candidates() -> list[Path]:
    places = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # noqa: S108  last resort
    return [Path(place) for place in places if place]


def _bases() -> Iterator[Path]:
    longest = wire.IPC_PATH_LIMIT - _SOCKET_NAME_BYTES - len("/" + PREFIX) - _RANDOM_BYTES
    for place in _candidates():
        if len(os.fsencode(place)) <= longest and os.access(place, os.W_OK | os.X_OK):
            yield place


def _mark(path: Path) -> int:
    # the file gets its name last, so no sweep sees it unlocked
    draft = path / f".{_OWNER}"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.write(lock, _MARKER + str(os.getpid()).encode())
    fcntl.flock(lock, fcntl.LOCK_SH)
    draft.rename(path / _OWNER)
    return lock


def _is_private(path: Path) -> bool:
    try:
        check_private(path)
    except OSError:  # also AuthError
        return False
    return True


def _remove_stale(path: Path) -> bool:
    try:
        lock = os.open(path / _OWNER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # just being made, just being removed, or none of ours
    try:
        if not os.pread(lock, len(_MARKER), 0).startswith(_MARKER):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return False  # its owner lives
    finally:
        os.close(lock)
