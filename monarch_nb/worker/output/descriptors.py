"""What C code and children write to descriptors 1 and 2 of a rank: has all of it gone on?

It goes through a pipe to the host's agent and from there to the controller: another way than what
the rank itself sends, and a longer one. Nothing is intercepted here. A pipe that is empty, and that
the agent has not read since, has nothing on its way.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
import termios
from typing import Final

from monarch_nb.core.wire.board import ReadCount
from monarch_nb.worker.status.board_writer import mapped

_LIBC: Final = ctypes.CDLL(None)
_STDOUT: Final = ctypes.c_void_p.in_dll(_LIBC, "stdout")
_LINE_BUFFERED: Final = 1


class Descriptors:
    """The pipes of this rank; `place` is that of its slot on the board."""

    def __init__(self, place: tuple[str, int]) -> None:
        path, index = place
        self._pipes = [os.dup(fd) for fd in (1, 2)]  # whatever user code makes of 1 and 2
        self._reads = ReadCount(mapped(path), index)
        self._seen = self._reads.value
        # as on a terminal; C's own choice for a pipe is to keep 4 KB back
        _LIBC.setvbuf(_STDOUT, None, _LINE_BUFFERED, 0)

    def is_on_its_way(self) -> bool:
        """Return whether something written since the last call may not have gone on yet."""
        _LIBC.fflush(_STDOUT)
        unread = any(map(_unread, self._pipes))
        before, self._seen = self._seen, self._reads.value  # in this order: see `ReadCount`
        return unread or self._seen != before


def _unread(fd: int) -> int:
    size = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)
