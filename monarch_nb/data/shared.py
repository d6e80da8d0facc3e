"""Warm shared memory with leases: large buffers between the processes of one host and one user.

The owner copies a buffer once into a segment (`Arena.lend`) and sends the small `Handle`; each
holder maps it (`attached.py`) and, when its last view is collected, has the owner `release` it. It
moves bytes and knows nothing of messages, pickles or sockets. The rules of the file:

1. A segment is never written while anyone holds a lease on it. A holder maps it privately (copy
   on write): the pages it has written are its own, but all others are still *our* pages.
2. A segment is a memfd: no name in /dev/shm, no size limit of a mount, gone with its last user.
3. No SIGBUS: pages are allocated before use, where failing is an exception, and never given back
   before the file is closed; a holder maps only the right inode, and only within its size.
4. `release`, `forget` and what a dying view runs never wait for a lock: the garbage collector may
   call them in the thread that has it. They queue; whoever has the lock settles.
5. What never changes (`bytes`) may be promised: its lease begins before it is copied, the lender
   has one of its own until then, and a holder waits before it maps.
6. A forked child may read on through mappings that nobody tracks. So a process that forks (by
   `os.fork`) keeps the leases it then holds until it dies, and its child releases none.

Two ways to copy (256 MB, one Xeon core, slow first touch): `pwrite` fills new pages at 2.5-3.2
GB/s, a mapping at 1.2-2.0, as the kernel clears each page first; and a one-off stays out of our
RSS. A segment used again is mapped for good and filled at 12 GB/s (two threads: 22), where
`pwrite` does 5. Neither holds the GIL.
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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from monarch_nb.core.wire.leases import Handle
from monarch_nb.errors import ClosedError, LimitError

PACK_BYTES = 64 << 20  # neighbours share a segment up to this size: 1000 tensors, not 1000 fds
_AWAITED_BYTES_PER_S = 25e9  # 10 ms for 256 MB, which take 100 ms to be touched
_PAGE = mmap.PAGESIZE
_SHARED = mmap.MAP_SHARED | mmap.MAP_POPULATE
_LENDER = -1  # holds a segment while it is being filled; processes have ids >= 0
_EVERY = 0  # in place of an inode number
_TURN = struct.Struct("<I")

_libc = ctypes.CDLL(None)
_libc.memcpy.restype = ctypes.c_void_p
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]

Whole = Sequence[memoryview]
"""One buffer, as pieces of bytes that follow each other."""


def last_turn(fd: int) -> int:
    """Return the number with which the file of a segment ends."""
    end = os.fstat(fd).st_size - _TURN.size
    found: int = _TURN.unpack(os.pread(fd, _TURN.size, end))[0]
    return found


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
        self._promised: queue.SimpleQueue[_Promise | None] = queue.SimpleQueue()
        self._filler: threading.Thread | None = None

    def lend(self, buffers: Sequence[memoryview], holders: Iterable[int]) -> list[Handle]:
        """Copy each contiguous, non-empty buffer once and lease it to every one of `holders`.

        A holder owes one `release` per handle. LimitError, with nothing lent, if memory is short.
        """
        return self.lend_pieces([[buffer] for buffer in buffers], holders)

    def lend_pieces(self, wholes: Sequence[Whole], holders: Iterable[int]) -> list[Handle]:
        """As `lend`, of buffers that are in pieces here and whole where they arrive."""
        runs, sizes, people = _prepared(wholes, holders)
        self._await_warm(max(sizes, default=0))
        segments = self._reserve(sizes)
        lent: list[list[Handle]] = []
        try:
            lent.extend(segment.fill(run) for segment, run in zip(segments, runs, strict=True))
        finally:
            self._finish(segments, lent, people)
        return [handle for handles in lent for handle in handles]

    def promise(self, wholes: Sequence[Whole], holders: Iterable[int]) -> list[Handle]:
        """As `lend_pieces`, of memory that never changes: returns at once, a thread copies it.

        Holders wait for it (`attached.py`), and fail if it cannot be done.
        """
        runs, sizes, people = _prepared(wholes, holders)
        segments = self._reserve(sizes)
        lent: list[list[Handle]] = []
        try:
            lent.extend(segment.promise(run) for segment, run in zip(segments, runs, strict=True))
        finally:
            self._finish(segments, lent, people, is_filled=False)
        for segment, run in zip(segments, runs, strict=True):
            self._promised.put(_Promise(segment, run))
        if self._filler is None:
            self._filler = threading.Thread(target=self._fill, name="monarch-lender", daemon=True)
            self._filler.start()
        return [handle for handles in lent for handle in handles]

    def _fill(self) -> None:
        while (promise := self._promised.get()) is not None:
            is_done = promise.segment.fulfil(promise.run)
            self.release(promise.segment.inode, _LENDER)
            if self._closed or not is_done:  # whoever waits for it finds it gone
                with self._locked():
                    self._drop({promise.segment}.intersection(self._segments))
            del promise  # and what it holds of the user's

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
        self._promised.put(None)
        if self._filler is not None and self._filler is not threading.current_thread():
            self._filler.join(1)

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

    def _finish(
        self,
        taken: list[_Segment],
        lent: list[list[Handle]],
        to: frozenset[int],
        *,
        is_filled: bool = True,
    ) -> None:
        # failed ones go: a second thread may still be writing in them
        with self._locked():
            for segment, handles in zip(taken, lent, strict=False):
                segment.leases = dict.fromkeys(to - self._dead, len(handles))
                if not is_filled:
                    segment.leases[_LENDER] = 1
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
        self._turn = 0
        self._is_allocated = False

    def fill(self, run: list[Whole]) -> list[Handle]:
        if self.fd < 0:
            self._create()
        self._copy(run)
        return self._handles(run, 0)

    def promise(self, run: list[Whole]) -> list[Handle]:
        """Return the handles that will hold when `fulfil` has succeeded."""
        if self.fd < 0:
            self._create()
        self._turn += 1
        return self._handles(run, self._turn)

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
            offset += _paged(whole)

    def _handles(self, run: list[Whole], turn: int) -> list[Handle]:
        handles, offset = [], 0
        for whole in run:
            size = _size(whole)
            handles.append(Handle(os.getpid(), self.fd, self.inode, offset, size, turn))
            offset += _paged(whole)
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
            os.ftruncate(self.fd, self.capacity + _TURN.size)
        except OSError as error:
            raise _full(self.capacity, 0) from error
        self.inode = os.fstat(self.fd).st_ino

    def _allocate(self) -> None:
        if not self._is_allocated:
            try:
                os.posix_fallocate(self.fd, 0, self.capacity + _TURN.size)
            except OSError as error:
                raise _full(self.capacity, 0) from error
            self._is_allocated = True

    def _write(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):  # the kernel takes 2 GB at a time
            done += os.pwrite(self.fd, view[done:], offset + done)

    def _move(self, view: memoryview, offset: int) -> None:
        self.mapping = self.mapping or mmap.mmap(self.fd, self.capacity, _SHARED)
        if isinstance(whole := view.obj, bytes) and len(whole) == len(view) <= PACK_BYTES:
            _libc.memcpy(_address(self.mapping) + offset, whole, len(whole))  # without the GIL
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


class _Promise(NamedTuple):
    """A segment, and what it is to be filled with."""

    segment: _Segment
    run: list[Whole]


def _prepared(
    wholes: Sequence[Whole], holders: Iterable[int]
) -> tuple[list[list[Whole]], list[int], frozenset[int]]:
    wholes = [[piece.cast("B") for piece in whole] for whole in wholes]
    people = frozenset(holders)
    if not people or not all(map(_size, wholes)):
        raise ValueError("lend() needs holders, and buffers that are not empty")
    runs = list(_runs(wholes))
    return runs, [sum(map(_paged, run)) for run in runs], people


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _runs(wholes: Sequence[Whole]) -> Iterator[list[Whole]]:
    run: list[Whole] = []
    for whole in wholes:
        if run and sum(map(_paged, run)) + _paged(whole) > PACK_BYTES:
            yield run
            run = []
        run.append(whole)
    if run:
        yield run


def _size(whole: Whole) -> int:
    return sum(map(len, whole))


def _paged(whole: Whole) -> int:
    return -(-_size(whole) // _PAGE) * _PAGE


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
