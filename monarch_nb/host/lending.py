"""Memory of this host for large values on their way between hosts: lent to the ranks that they are
for, and by the ranks that they are from.

A value that comes is put here once for all ranks of the host, piece by piece; one that goes is read
where its rank has put it. Made when the first one comes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data import attached
from monarch_nb.data.shared import Arena
from monarch_nb.data.shared import Room as SharedRoom
from monarch_nb.errors import BrokenError, LimitError, RemoteProtocolError
from monarch_nb.net.hosts.bulk.joiner import OwnRoom, Room

_NO_FILE_LEFT: Final = (errno.EMFILE, errno.ENFILE)


class Lending:
    """Lends memory for the gateway, as its `Lender`. `limit_bytes`: of all together;
    `threshold_bytes`: smaller buffers travel in their messages."""

    def __init__(self, limit_bytes: int, threshold_bytes: int) -> None:
        self.threshold_bytes = threshold_bytes
        self._limit_bytes = limit_bytes
        self._arena: Arena | None = None
        self._spare = _SpareFile()

    def rooms(self, sizes: Sequence[int]) -> list[Room]:
        """Make memory for buffers of so many bytes: such as can be lent, if they are large and
        there is room."""
        large = [size for size in sizes if size >= self.threshold_bytes]
        try:
            found = iter(self._opened().rooms(large) if large else ())
        except LimitError:
            return [OwnRoom(size) for size in sizes]
        return [
            _Lendable(next(found)) if size >= self.threshold_bytes else OwnRoom(size)
            for size in sizes
        ]

    def lend(self, buffers: Sequence[memoryview], holders: Sequence[int]) -> list[Handle]:
        """Lend these buffers to processes of this host. Raises `LimitError` where there is no
        room."""
        return self._opened().lend(buffers, holders)

    def borrow(self, handle: Handle, on_release: Callable[[], None]) -> memoryview:
        """Return what a process has lent; `on_release` is called, by any thread, when nobody has a
        view of it any more. Raises `BrokenError` where it is gone."""
        attach = functools.partial(attached.attach, handle, on_release, read_only=True)
        self._spare.hold()
        try:
            return attach()
        except BrokenError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _NO_FILE_LEFT:
                raise
        self._spare.give_up()  # strangers at the port of the host hold all others
        return attach()

    def release(self, segment: int, holder: int) -> None:
        """Take back what one process held."""
        if self._arena is not None:
            self._arena.release(segment, holder)

    def forget(self, holder: int) -> None:
        """Take back all that a process held, which has ended, and hold nothing of its own."""
        attached.give_up_kept()
        if self._arena is not None:
            self._arena.forget(holder)

    def close(self) -> None:
        """Let go of all: the ranks have gone."""
        attached.give_up_kept()
        self._spare.give_up()
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.close()

    def _opened(self) -> Arena:
        if self._arena is None:
            self._arena = Arena(self._limit_bytes)
        return self._arena


class _SpareFile:
    """A file that is open for the moment in which no other can be opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1

    def hold(self) -> None:
        """Open it, if it is not."""
        with self._lock, contextlib.suppress(OSError):  # others have them all: at the next time
            if self._fd < 0:
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def give_up(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Lendable:
    """Room that the gateway fills. It knows one error only: what has come cannot be taken."""

    def __init__(self, room: SharedRoom) -> None:
        self._room = room
        self.whole = room.whole

    def part(self, begin: int, end: int) -> memoryview:
        try:
            return self._room.part(begin, end)
        except LimitError as error:
            raise RemoteProtocolError(f"no room for what comes: {error}") from error
