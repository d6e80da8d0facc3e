"""The memory that ranks are forked with, in huge pages.

A fork copies the page table of what was written to, and the end of a process takes its own down,
page by page: with PyTorch loaded that is most of what either takes. A huge page counts as one of
512; what a rank then writes to is copied for it in small pages, as ever. Linux 6.1 and later put
pages together on demand (madvise(2), MADV_COLLAPSE); elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MADV_COLLAPSE: Final = 25
_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_ANONYMOUS: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p 0+ 00:00 0 *(?:\[heap\]|\[anon:.*\])?$", re.MULTILINE
)
_NO_ROOM: Final = frozenset({errno.ENOMEM, errno.EBUSY})
_libc: Final = ctypes.CDLL(None, use_errno=True)


class HugePages:
    """Puts the pages of this process together, some at a time: each takes milliseconds."""

    def __init__(self) -> None:
        self._left: Iterator[tuple[int, int]] | None = None
        self.is_done = False

    def begin_again(self) -> None:
        """Look for more: a library was loaded."""
        self._left, self.is_done = None, False

    def make_one(self) -> None:
        """Make one huge page more, or find that all are made."""
        if self._left is None:
            self._left = iter(list(_places()))
        place = next(self._left, None)
        if place is None or _collapse(*place) in _NO_ROOM:
            self.is_done = True


def _places() -> Iterator[tuple[int, int]]:
    """Yield addresses and sizes of what can become one huge page each."""
    if not _SIZE.exists():
        return
    size = int(_SIZE.read_text())
    for first, end in _ANONYMOUS.findall(Path("/proc/self/maps").read_text()):
        start = -(-int(first, 16) // size) * size
        yield from ((place, size) for place in range(start, int(end, 16) - size + 1, size))


def _collapse(place: int, size: int) -> int:
    done = _libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(size), _MADV_COLLAPSE)
    return 0 if done == 0 else ctypes.get_errno()
