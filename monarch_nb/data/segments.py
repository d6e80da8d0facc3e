"""A segment of shared memory: one file without a name, how it gets its pages and what is put there.

Two ways to copy (256 MB, one Xeon core, slow first touch): `pwrite` fills new pages at 2.5-3.2
GB/s, a mapping at 1.2-2.0, as the kernel clears each page first; and a one-off stays out of our
RSS. A segment used again is mapped for good and filled at 12 GB/s (two threads: 22), where
`pwrite` does 5. Neither holds the GIL. Who receives fills a mapping piece by piece: `touch` has the
kernel make a piece's pages at once, where failing is an error.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.leases import Handle
from monarch_nb.errors import LimitError

PACK_BYTES = 64 << 20  # neighbours share a segment up to this size: 1000 tensors, not 1000 fds
PAGE: Final = mmap.PAGESIZE
_TURN = struct.Struct("<I")
_MAP_FIXED: Final = 0x10
_POPULATE_WRITE: Final = 23  # Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.memcpy.restype = ctypes.c_void_p
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

Whole = Sequence[memoryview]
"""One buffer, as pieces of bytes that follow each other."""


def last_turn(fd: int) -> int:
    """Return the number with which the file of a segment ends."""
    end = os.fstat(fd).st_size - _TURN.size
    found: int = _TURN.unpack(os.pread(fd, _TURN.size, end))[0]
    return found


def mapped(
    fd: int, offset: int, size: int, flags: int, access: int = mmap.PROT_READ | mmap.PROT_WRITE
) -> mmap.mmap:
    """Map a part of a file. Raises `OSError`."""
    # an anonymous mapping with the file put in its place: `mmap.mmap` would keep the fd open
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
    address = address_of(mapping)
    if _libc.mmap(address, size, access, flags | _MAP_FIXED, fd, offset) != address:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return mapping


class Segment:
    """One memfd with room for `size` bytes. `leases`: handles that each holder has not released."""

    def __init__(self, size: int) -> None:
        step = max(PAGE, (1 << size.bit_length()) // 16)  # 8 sizes per octave: padding <= 12.5 %
        self.capacity = -(-size // step) * step
        self.fd = -1
        self.inode = 0
        self.mapping: mmap.mmap | None = None
        self.leases: dict[int, int] = {}
        self._turn = 0
        self._touched = 0  # it has all pages before
        self._is_allocated = False

    def lease(self, holders: Iterable[int]) -> None:
        """Let each of these hold one handle more."""
        for each in holders:
            self.leases[each] = self.leases.get(each, 0) + 1

    def open(self, sizes: Sequence[int]) -> list[Handle]:
        """Return the places of buffers that are to be put into `window`s."""
        if self.fd < 0:
            self._create()
        self.mapping = self.mapping or self._mapped(mmap.MAP_SHARED)
        return self._handles(sizes, 0)

    def window(self, offset: int, size: int) -> ctypes.Array[ctypes.c_char]:
        assert self.mapping is not None
        return (ctypes.c_char * size).from_buffer(self.mapping, offset)

    def touch(self, begin: int, end: int) -> None:
        """Have the pages of these bytes made, those before them first. Raises `LimitError`."""
        if self._is_allocated or end <= self._touched:
            return
        assert self.mapping is not None
        begin, end = self._touched, min(paged(end), self.capacity)
        address = address_of(self.mapping) + begin
        if _libc.madvise(address, end - begin, _POPULATE_WRITE):
            if ctypes.get_errno() != errno.EINVAL:  # of an older kernel
                raise full(end - begin, 0)
            self._allocate_until(begin, end)
        self._touched = end

    def fill(self, run: list[Whole]) -> list[Handle]:
        if self.fd < 0:
            self._create()
        self._copy(run)
        return self._handles([size_of(whole) for whole in run], 0)

    def promise(self, run: list[Whole]) -> list[Handle]:
        """Return the handles that will hold when `fulfil` has succeeded."""
        if self.fd < 0:
            self._create()
        self._turn += 1
        return self._handles([size_of(whole) for whole in run], self._turn)

    def fulfil(self, run: list[Whole]) -> bool:
        try:
            self._copy(run)
            os.pwrite(self.fd, _TURN.pack(self._turn), self.capacity)
        except (OSError, LimitError):
            return False
        return True

    def _copy(self, run: list[Whole]) -> None:
        write = self._move if self._is_allocated else self._write
        self._allocate()
        offset = 0
        for whole in run:
            at = offset
            for piece in whole:
                write(piece, at)
                at += len(piece)
            offset += paged(size_of(whole))

    def _handles(self, sizes: Sequence[int], turn: int) -> list[Handle]:
        handles, offset = [], 0
        for size in sizes:
            handles.append(Handle(os.getpid(), self.fd, self.inode, offset, size, turn))
            offset += paged(size)
        return handles

    def drop(self) -> None:
        # Close the file; the mapping ends with its last user
        fd, self.fd, self.mapping = self.fd, -1, None
        if fd >= 0:
            os.close(fd)

    def _create(self) -> None:
        meminfo = Path("/proc/meminfo").read_text().split()
        free = int(meminfo[meminfo.index("MemAvailable:") + 1]) * 1024 * 7 // 8
        if self.capacity > free:  # the kernel would not refuse, but start to kill
            raise full(self.capacity, free)
        try:
            self.fd = os.memfd_create("monarch_nb", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, self.capacity + _TURN.size)
        except OSError as error:
            raise full(self.capacity, 0) from error
        self.inode = os.fstat(self.fd).st_ino

    def _allocate(self) -> None:
        if not self._is_allocated:
            self._allocate_until(self._touched, self.capacity + _TURN.size)
            self._is_allocated = True

    def _allocate_until(self, begin: int, end: int) -> None:
        try:
            os.posix_fallocate(self.fd, begin, end - begin)
        except OSError as error:
            raise full(self.capacity, 0) from error

    def _mapped(self, flags: int) -> mmap.mmap:
        try:
            return mapped(self.fd, 0, self.capacity, flags)
        except OSError as error:
            raise full(self.capacity, 0) from error

    def _write(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):  # the kernel takes 2 GB at a time
            done += os.pwrite(self.fd, view[done:], offset + done)

    def _move(self, view: memoryview, offset: int) -> None:
        self.mapping = self.mapping or self._mapped(mmap.MAP_SHARED | mmap.MAP_POPULATE)
        if isinstance(whole := view.obj, bytes) and len(whole) == len(view) <= PACK_BYTES:
            _libc.memcpy(address_of(self.mapping) + offset, whole, len(whole))  # without the GIL
            return
        import numpy as np  # its copyto lets go of the GIL and takes read-only buffers

        target = np.frombuffer(self.mapping, np.uint8, len(view), offset)
        source = np.frombuffer(view, np.uint8)
        if len(view) <= PACK_BYTES:
            np.copyto(target, source)
            return
        half = len(view) // 2
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(np.copyto, target[:half], source[:half])
            np.copyto(target[half:], source[half:])
            other.result()


def size_of(whole: Whole) -> int:
    return sum(map(len, whole))


def paged(size: int) -> int:
    """Return how many bytes of whole pages it takes."""
    return -(-size // PAGE) * PAGE


def address_of(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def full(need: int, free: int) -> LimitError:
    message = f"shared memory full: need {need} bytes, free {free}"
    return LimitError(message, limit=free, size=need)
