"""Memory that another process has lent, mapped here (`attach`) until its last view is collected.

Large mappings outlive that, for the next buffer that lies in the same place: making one again costs
two page faults' time for each page, 25 ms for 256 MB that take 10 ms to be summed. Rules:

1. Only a mapping of which no page was written is kept: the others have pages of their own, which
   would hide what the lender writes next. The kernel tells (`_is_unwritten`; Linux 6.7), unless it
   was mapped to be read only.
2. What is kept holds the lender's memory even after it has let go of it, so it is bounded, and
   given up when any process dies (`give_up_kept`).
3. The end of a view may come inside any allocation of any thread: it takes no lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import pickle
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data.segments import address_of, last_turn, mapped
from monarch_nb.errors import BrokenError

KEPT_BYTES: Final = 1 << 30
KEPT_FROM_BYTES: Final = 4 << 20  # below, a mapping costs less than looking after it
_SHORTEST_S: Final = 20e-6  # between two looks whether it is filled
_LONGEST_S: Final = 1e-3
_PAGEMAP_SCAN: Final = 0xC0606610
_SCAN: Final = struct.Struct("<12Q")
_FILE, _PRESENT, _SWAPPED = 1 << 2, 1 << 3, 1 << 4

_forks: list[None] = []  # grows at every fork; thrice, as other threads run between hooks and fork
_count = partial(_forks.append, None)
os.register_at_fork(before=_count, after_in_parent=_count, after_in_child=_count)

Way = tuple[Handle, bool]
"""What is mapped, and whether it is to be read only."""
_kept: dict[Way, mmap.mmap] = {}  # the most recently used last


def attach(
    handle: Handle, on_release: Callable[[], None], *, read_only: bool = False
) -> memoryview:
    """Return the lent bytes as a private view; nobody else sees what is written to it.

    When the last view or array over it is gone, it is let go of and `on_release` called once, in
    whatever thread that happens. BrokenError if the owner has died or has let go of the segment.
    """
    forks = len(_forks)
    if handle.turn:
        _wait_until_filled(handle)
        handle = handle._replace(turn=0)
    way = handle, read_only
    mapping = _kept.pop(way, None) or _map(*way)
    window = (ctypes.c_char * handle.size).from_address(address_of(mapping))
    weakref.finalize(window, _ended, way, mapping, forks, on_release).atexit = False
    view = pickle.PickleBuffer(window).raw()
    return view.toreadonly() if read_only else view


def give_up_kept() -> None:
    """Unmap what nobody uses: its lender may be gone."""
    _kept.clear()


def _wait_until_filled(handle: Handle) -> None:
    # the copy takes milliseconds; whether the lender is there still is seen by opening anew
    pause_s = _SHORTEST_S
    while True:
        with _opened(handle) as fd:
            if last_turn(fd) == handle.turn:
                return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _map(handle: Handle, read_only: bool) -> mmap.mmap:
    access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
    with _opened(handle) as fd:
        return mapped(fd, handle.offset, handle.size, mmap.MAP_PRIVATE, access)


@contextlib.contextmanager
def _opened(handle: Handle) -> Iterator[int]:
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", flags)
        try:
            status = os.fstat(fd)
            if status.st_ino != handle.segment or handle.offset + handle.size > status.st_size:
                raise FileNotFoundError("it is another file by now")
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        message = f"cannot attach shared memory of process {handle.pid}; has it ended? {error}"
        raise BrokenError(message) from error


def _ended(way: Way, mapping: mmap.mmap, forks: int, on_release: Callable[[], None]) -> None:
    if forks != len(_forks):  # a child reads on
        return
    handle, read_only = way
    if handle.size >= KEPT_FROM_BYTES and (read_only or _is_unwritten(mapping)):
        _keep(way, mapping)
    else:
        mapping.close()
    on_release()


def _keep(way: Way, mapping: mmap.mmap) -> None:
    _kept.pop(way, None)
    _kept[way] = mapping
    while sum(map(len, list(_kept.values()))) > KEPT_BYTES:
        _kept.pop(next(iter(list(_kept)), way), None)


def _is_unwritten(mapping: mmap.mmap) -> bool:
    # Whether all its pages that are there are the file's
    start = address_of(mapping)
    end = -(-(start + len(mapping)) // mmap.PAGESIZE) * mmap.PAGESIZE
    region = ctypes.create_string_buffer(24)  # where the kernel puts the first that is not
    query = _SCAN.pack(
        _SCAN.size, 0, start, end, 0, ctypes.addressof(region), 1, 1,
        _FILE, _FILE, _PRESENT | _SWAPPED, _FILE,
    )  # fmt: skip
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:  # noqa: PTH123  no path needed
            found: int = fcntl.ioctl(pages, _PAGEMAP_SCAN, bytearray(query))
    except OSError:
        return False
    return found == 0
