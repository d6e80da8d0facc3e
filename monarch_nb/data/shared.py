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
7. Who receives may fill a segment in place of copying into it: a *room* is the lender's until its
   last view is collected, and what lies in one is lent as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data.segments import PACK_BYTES, Segment, Whole, full, paged, size_of
from monarch_nb.errors import ClosedError

_AWAITED_BYTES_PER_S = 25e9  # 10 ms for 256 MB, which take 100 ms to be touched
_LENDER = -1  # holds a segment while it is being filled; processes have ids >= 0
_EVERY = 0  # in place of an inode number
T = TypeVar("T")


class Room:
    """Memory for one buffer, to be filled from its begin to its end, and then lent."""

    def __init__(self, segment: Segment, handle: Handle) -> None:
        self._segment = segment
        self._handle = handle
        self.window = segment.window(handle.offset, handle.size)
        self.whole = pickle.PickleBuffer(self.window).raw()

    def part(self, begin: int, end: int) -> memoryview:
        """Return a part of it, which has its pages now. Raises `LimitError` where there are
        none."""
        self._segment.touch(self._handle.offset + begin, self._handle.offset + end)
        return self.whole[begin:end]


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
        self._rooms: dict[int, _Place] = {}  # by the `id` of the window over each
        self._segments: list[Segment] = []  # the most recently lent last
        self._returned: deque[tuple[int, int]] = deque()  # (segment, holder)
        self._is_awaited = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dead: set[int] = set()
        self._promised: queue.SimpleQueue[_Promise | None] = queue.SimpleQueue()
        self._filler: threading.Thread | None = None

    def lend(self, buffers: Sequence[memoryview], holders: Iterable[int]) -> list[Handle]:
        """Copy each contiguous, non-empty buffer once and lease it to every one of `holders`. What
        lies in a room is not copied.

        A holder owes one `release` per handle. LimitError, with nothing lent, if memory is short.
        """
        people = frozenset(holders)
        placed = [self._place_of(buffer) for buffer in buffers]
        others = [[each] for each, place in zip(buffers, placed, strict=True) if place is None]
        handles = iter(self.lend_pieces(others, people) if others else ())
        with self._locked():
            for place in placed:
                if place is not None:
                    place.segment.lease(people - self._dead)
        return [next(handles) if place is None else place.handle for place in placed]

    def _place_of(self, buffer: memoryview) -> _Place | None:
        return self._rooms.get(id(buffer.obj)) if isinstance(buffer.obj, ctypes.Array) else None

    def rooms(self, sizes: Sequence[int]) -> list[Room]:
        """Return memory for so many bytes each, more than none. Each is kept until its last view
        is collected and, if it was lent, everybody has released it.

        LimitError if memory is short.
        """
        runs = list(_runs(sizes, lambda size: size))
        segments = self._reserve([sum(map(paged, run)) for run in runs])
        opened: list[list[Handle]] = []
        try:
            opened.extend(each.open(run) for each, run in zip(segments, runs, strict=True))
        finally:
            self._finish(segments, opened, frozenset([_LENDER]))
        places = [
            _Place(segment, handle)
            for segment, handles in zip(segments, opened, strict=True)
            for handle in handles
        ]
        made = [Room(*place) for place in places]
        for room, place in zip(made, places, strict=True):
            self._rooms[id(room.window)] = place
            end = weakref.finalize(room.window, self._room_ended, id(room.window), place)
            end.atexit = False
        return made

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

    def _room_ended(self, window: int, place: _Place) -> None:
        del self._rooms[window]
        self.release(place.segment.inode, _LENDER)

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
        self._trim(0 if self._closed else self.limit_bytes // 2)

    def _trim(self, keep_bytes: int) -> None:
        excess = _total(self._idle()) - keep_bytes
        for segment in self._idle():
            if excess > 0:
                self._drop([segment])
                excess -= segment.capacity

    def _idle(self) -> list[Segment]:
        return [segment for segment in self._segments if not segment.leases]

    def _drop(self, segments: Iterable[Segment]) -> None:
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

    def _reserve(self, sizes: list[int]) -> list[Segment]:
        # new ones have no file yet
        with self._locked():
            self._check_open()
            idle = self._idle()
            free = self.limit_bytes - _total(self._segments) + _total(idle)
            taken = [_best(idle, size) or Segment(size) for size in sizes]
            if _total(taken) > free:
                raise full(_total(taken), free)
            self._segments = [s for s in self._segments if s not in taken] + taken
            for segment in taken:
                segment.leases = {_LENDER: 1}
            self._trim(free - _total(taken))
            return taken

    def _finish(
        self,
        taken: list[Segment],
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


class _Place(NamedTuple):
    """Where a room is."""

    segment: Segment
    handle: Handle


class _Promise(NamedTuple):
    """A segment, and what it is to be filled with."""

    segment: Segment
    run: list[Whole]


def _prepared(
    wholes: Sequence[Whole], holders: Iterable[int]
) -> tuple[list[list[Whole]], list[int], frozenset[int]]:
    wholes = [[piece.cast("B") for piece in whole] for whole in wholes]
    people = frozenset(holders)
    if not people or not all(map(size_of, wholes)):
        raise ValueError("lend() needs holders, and buffers that are not empty")
    runs = list(_runs(wholes, size_of))
    return runs, [sum(paged(size_of(whole)) for whole in run) for run in runs], people


def _runs(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    run: list[T] = []
    filled = 0
    for item in items:
        room = paged(size(item))
        if run and filled + room > PACK_BYTES:
            yield run
            run, filled = [], 0
        run.append(item)
        filled += room
    if run:
        yield run


def _best(idle: list[Segment], size: int) -> Segment | None:
    # the tightest fit; more than a quarter of padding is not tight
    fits = [segment for segment in idle if _is_fit(segment, size)]
    best = min(fits, key=lambda segment: segment.capacity, default=None)
    if best:
        idle.remove(best)
    return best


def _is_fit(segment: Segment, size: int) -> bool:
    return size <= segment.capacity <= size * 5 // 4


def _total(segments: list[Segment]) -> int:
    return sum(segment.capacity for segment in segments)
