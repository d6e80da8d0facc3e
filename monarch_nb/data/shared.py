"""Warm shared memory with leases: large buffers between the processes of one host and one user.

The owner copies a buffer once into a segment (`Arena.lend`) and sends the small `Handle`; each
holder maps it (`attach`) and, when its last view is collected, has the owner `release` it. It
moves bytes and knows nothing of messages, pickles or sockets. The rules of the file:

1. A segment is never written while anyone holds a lease on it. A holder maps it privately (copy
   on write): the pages it has written are its own, but all others are still *our* pages.
2. A segment is a memfd: no name in /dev/shm, no size limit of a mount, gone with its last user.
3. No SIGBUS: pages are allocated before use, where failing is an exception, and never given back
   before the file is closed; a holder maps only the right inode, and only within its size.
4. `release`, `forget` and what a dying view runs never wait for a lock: the garbage collector may
   call them in the thread that has it. They queue; whoever has the lock settles.
5. A forked child may read on through mappings that nobody tracks. So a process that forks (by
   `os.fork`) keeps the leases it then holds until it dies, and its child releases none.

Two ways to copy (256 MB, one Xeon core, slow first touch): `pwrite` fills new pages at 2.5-3.2
GB/s, a mapping at 1.2-2.0, as the kernel clears each page first; and a one-off stays out of our
RSS. A segment used again is mapped for good and filled at 12 GB/s (two threads: 22), where
`pwrite` does 5. Neither holds the GIL. Attaching maps lazily: reading pays 9 ms of faults per
256 MB, as much as populating would; each page written is copied first.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import queue
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from monarch_nb.errors import BrokenError, ClosedError, LimitError, RemoteProtocolError

PACK_BYTES = 64 << 20  # neighbours share a segment up to this size: 1000 tensors, not 1000 fds
_AWAITED_BYTES_PER_S = 25e9  # 10 ms for 256 MB, which take 100 ms to be touched
_PAGE = mmap.PAGESIZE
_SHARED = mmap.MAP_SHARED | mmap.MAP_POPULATE
_MAP_FIXED = 0x10
_LENDER = -1  # holds a segment while it is being filled; processes have ids >= 0
_EVERY = 0  # in place of an inode number
_LAYOUT = struct.Struct("<IIQQQ")
HANDLE_BYTES = _LAYOUT.size

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

_forks: list[None] = []  # grows at every fork; thrice, as other threads run between hooks and fork
_count = partial(_forks.append, None)
os.register_at_fork(before=_count, after_in_parent=_count, after_in_child=_count)


class Handle(NamedTuple):
    """Where a lent buffer lies: bytes [offset, offset + size) of file `fd` of process `pid`.

    `segment` is the inode number of the file, so a recycled pid or fd is never taken for it.
    """

    pid: int
    fd: int
    segment: int
    offset: int
    size: int

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Handle:
        """Return the handle of `pack`; RemoteProtocolError if these bytes cannot be one."""
        handle = cls(*_LAYOUT.unpack(data)) if len(data) == HANDLE_BYTES else None
        if not handle or not handle.pid or not handle.size or handle.offset % _PAGE:
            raise RemoteProtocolError(f"not a handle of shared memory: {handle or len(data)}")
        return handle


class Arena:
    """The segments one process owns. Every method may be called from any thread.

    `limit_bytes` bounds all of them together, with padding. Idle ones are kept warm up to half of
    that, the most recently lent: a steady exchange of up to half the limit never touches a new
    page, and after a burst the other half goes back to the system.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._segments: list[_Segment] = []  # the most recently lent last
        self._returned: deque[tuple[int, int]] = deque()  # (segment, holder)
        self._is_awaited = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dead: set[int] = set()

    def lend(self, buffers: Sequence[memoryview], holders: Iterable[int]) -> list[Handle]:
        """Copy each contiguous, non-empty buffer once and lease it to every one of `holders`.

        A holder owes one `release` per handle. LimitError, with nothing lent, if memory is short.
        """
        views, people = [view.cast("B") for view in buffers], frozenset(holders)
        if not people or not all(views):
            raise ValueError("lend() needs holders, and buffers that are not empty")
        runs = list(_runs(views))
        sizes = [sum(map(_paged, run)) for run in runs]
        self._await_warm(max(sizes, default=0))
        segments = self._reserve(sizes)
        lent: list[list[Handle]] = []
        try:
            lent.extend(segment.fill(run) for segment, run in zip(segments, runs, strict=True))
        finally:
            self._finish(segments, lent, people)
        return [handle for handles in lent for handle in handles]

    def release(self, segment: int, holder: int) -> None:
        """Take one handle in `segment` back from `holder`. Ignored if it has none. Never waits."""
        self._returned.append((segment, holder))
        self._settle()
        if self._is_awaited:
            self._news.put(None)  # re-entrant

    def forget(self, holder: int) -> None:
        """End the leases of `holder`, which has died; it gets none any more. Never waits."""
        self._dead.add(holder)
        self.release(_EVERY, holder)

    def statistics(self) -> dict[str, int]:
        """Return how many `segments`, their `bytes` with padding, and `leased_bytes` of these."""
        with self._locked():
            count, total, idle = len(self._segments), _total(self._segments), _total(self._idle())
        return {"segments": count, "bytes": total, "leased_bytes": total - idle}

    def close(self) -> None:
        """Let go of every segment. Who has attached keeps the data; who has not will fail."""
        with self._locked():
            self._closed = True
            self._drop(segment for segment in self._segments if _LENDER not in segment.leases)

    def abandon_after_fork(self) -> None:
        """Close a forked child's copies of the parent's files; this arena is then closed.

        Takes no lock, as a thread that did not survive the fork may have held it.
        """
        self._lock = threading.Lock()
        self._closed = True
        self._returned.clear()
        self._drop(self._segments)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                self._drain()
                yield
        finally:
            self._settle()

    def _settle(self) -> None:
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        while self._returned:
            inode, holder = self._returned.popleft()
            for segment in self._segments:
                if inode in (segment.inode, _EVERY):
                    left = segment.leases.pop(holder, 0) - 1
                    if left > 0 and inode != _EVERY:
                        segment.leases[holder] = left
        self._trim(self.limit_bytes // 2)

    def _trim(self, keep_bytes: int) -> None:
        excess = _total(self._idle()) - keep_bytes
        for segment in self._idle():
            if excess > 0:
                self._drop([segment])
                excess -= segment.capacity

    def _idle(self) -> list[_Segment]:
        return [segment for segment in self._segments if not segment.leases]

    def _drop(self, segments: Iterable[_Segment]) -> None:
        for segment in list(segments):
            self._segments.remove(segment)
            segment.drop()

    def _await_warm(self, size: int) -> None:
        # A large segment that would do may be on its way back: a moment costs less than new pages;
        # of what `_write` would take, a tenth at most
        until = time.monotonic() + size / _AWAITED_BYTES_PER_S
        self._is_awaited = size > PACK_BYTES
        while self._is_awaited and self._fits_only_lent(size):
            try:
                self._news.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
        self._is_awaited = False

    def _fits_only_lent(self, size: int) -> bool:
        with self._locked():
            fits = [each for each in self._segments if _is_fit(each, size)]
        return bool(fits) and all(each.leases for each in fits)

    def _reserve(self, sizes: list[int]) -> list[_Segment]:
        # new ones have no file yet
        with self._locked():
            self._check_open()
            idle = self._idle()
            free = self.limit_bytes - _total(self._segments) + _total(idle)
            taken = [_best(idle, size) or _Segment(size) for size in sizes]
            if _total(taken) > free:
                raise _full(_total(taken), free)
            self._segments = [s for s in self._segments if s not in taken] + taken
            for segment in taken:
                segment.leases = {_LENDER: 1}
            self._trim(free - _total(taken))
            return taken

    def _finish(self, taken: list[_Segment], lent: list[list[Handle]], to: frozenset[int]) -> None:
        # failed ones go: a second thread may still be writing in them
        with self._locked():
            for segment, handles in zip(taken, lent, strict=False):
                segment.leases = dict.fromkeys(to - self._dead, len(handles))
            if self._closed or len(lent) < len(taken):
                self._drop(taken)
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the shared-memory arena is closed")


class _Segment:
    """One memfd with room for `size` bytes. `leases`: handles that each holder has not released."""

    def __init__(self, size: int) -> None:
        step = max(_PAGE, (1 << size.bit_length()) // 16)  # 8 sizes per octave: padding <= 12.5 %
        self.capacity = -(-size // step) * step
        self.fd = -1
        self.inode = 0
        self.mapping: mmap.mmap | None = None
        self.leases: dict[int, int] = {}

    def fill(self, run: list[memoryview]) -> list[Handle]:
        write = self._move if self.fd >= 0 else self._write
        if self.fd < 0:
            self._create()
        handles, offset = [], 0
        for view in run:
            write(view, offset)
            handles.append(Handle(os.getpid(), self.fd, self.inode, offset, len(view)))
            offset += _paged(view)
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
            raise _full(self.capacity, free)
        try:
            self.fd = os.memfd_create("monarch_nb", os.MFD_CLOEXEC)
            os.posix_fallocate(self.fd, 0, self.capacity)
        except OSError as error:
            raise _full(self.capacity, 0) from error
        self.inode = os.fstat(self.fd).st_ino

    def _write(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):  # the kernel takes 2 GB at a time
            done += os.pwrite(self.fd, view[done:], offset + done)

    def _move(self, view: memoryview, offset: int) -> None:
        import numpy as np  # its copyto lets go of the GIL and takes read-only buffers

        self.mapping = self.mapping or mmap.mmap(self.fd, self.capacity, _SHARED)
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


def _runs(views: list[memoryview]) -> Iterator[list[memoryview]]:
    run: list[memoryview] = []
    for view in views:
        if run and sum(map(_paged, run)) + _paged(view) > PACK_BYTES:
            yield run
            run = []
        run.append(view)
    if run:
        yield run


def _paged(view: memoryview) -> int:
    return -(-len(view) // _PAGE) * _PAGE


def _best(idle: list[_Segment], size: int) -> _Segment | None:
    # the tightest fit; more than a quarter of padding is not tight
    fits = [segment for segment in idle if _is_fit(segment, size)]
    best = min(fits, key=lambda segment: segment.capacity, default=None)
    if best:
        idle.remove(best)
    return best


def _is_fit(segment: _Segment, size: int) -> bool:
    return size <= segment.capacity <= size * 5 // 4


def _total(segments: list[_Segment]) -> int:
    return sum(segment.capacity for segment in segments)


def _full(need: int, free: int) -> LimitError:
    message = f"shared memory full: need {need} bytes, free {free}"
    return LimitError(message, limit=free, size=need)


def attach(handle: Handle, on_release: Callable[[], None]) -> memoryview:
    """Return the lent bytes as a private, writable view; nobody else sees what is written to it.

    When the last view or array over it is gone, it is unmapped and `on_release` called once, in
    whatever thread that happens. BrokenError if the owner has died or has let go of the segment.
    """
    forks = len(_forks)
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(f"/proc/{handle.pid}/fd/{handle.fd}", flags)
        try:
            mapping = _map(fd, handle)
        finally:
            os.close(fd)
    except OSError as error:
        message = f"cannot attach shared memory of process {handle.pid}; has it ended? {error}"
        raise BrokenError(message) from error
    weakref.finalize(mapping, _unmapped, forks, on_release).atexit = False
    return memoryview(mapping)


def _map(fd: int, handle: Handle) -> mmap.mmap:
    # an anonymous mapping with the file put in its place: `mmap.mmap` would keep the fd open
    status = os.fstat(fd)
    if status.st_ino != handle.segment or handle.offset + handle.size > status.st_size:
        raise FileNotFoundError("it is another file by now")
    mapping = mmap.mmap(-1, handle.size, mmap.MAP_PRIVATE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    if _libc.mmap(address, handle.size, access, flags, fd, handle.offset) != address:
        raise OSError(ctypes.get_errno(), "mmap failed")
    return mapping


def _unmapped(forks: int, on_release: Callable[[], None]) -> None:
    if forks == len(_forks):
        on_release()
