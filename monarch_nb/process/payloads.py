"""Values on their way: encoded once, with large buffers in shared memory, which receivers of this
host map; for those of others its gateway does.

Rules: what a process lends it keeps until every receiver has let go or died; a finalizer only
queues (it may run inside any allocation, even where a lock is held); the lender is told by a thread
of its own, or by who is about to answer it. Nothing here sends a message but by the `release` it
was given.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monarch_nb.config import Config
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import (
    DETACHED,
    GATEWAY,
    HOST_SHIFT,
    LENT,
    RELAYED,
    SHARED,
    Buffer,
    Message,
)
from monarch_nb.core.wire.leases import Handle, read_table, write_table
from monarch_nb.data.attached import attach, give_up_kept
from monarch_nb.data.segments import Whole
from monarch_nb.data.shared import Arena
from monarch_nb.errors import LimitError, RemoteProtocolError
from monarch_nb.net.links import DETACH_BYTES


@dataclass(slots=True, eq=False, repr=False)
class Payload:
    payload: bytes
    buffers: Sequence[Any] = ()
    flags: int = 0

    def behind(self, prefix: bytes) -> Payload:
        """Return it with something in front of the pickle, which the receiver takes away."""
        return Payload(prefix + self.payload, self.buffers, self.flags)


class _Unread:
    __slots__ = ("_message", "_payloads")

    def __init__(self, payloads: Payloads, message: Message) -> None:
        self._payloads = payloads
        self._message = message

    def __call__(self) -> Any:
        return self._payloads.decode(self._message)

    def __del__(self) -> None:
        self._payloads.discard_later(self._message)


class Payloads:
    """Encodes and decodes for one process.

    `dead` are processes that get nothing any more; `release(owner, segment)` tells another process
    that what it lent is free.
    """

    def __init__(
        self, host: int, config: Config, dead: Collection[int], release: Callable[[int, int], None]
    ) -> None:
        self._host = host
        self._config = config
        self._dead = dead
        self._release = release
        self._arena: Arena | None = None
        self._lock = threading.Lock()
        self._freed: deque[tuple[int, int]] = deque()  # owners and segments, to be told
        self._giving = threading.Lock()
        self._wakeups: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._releaser: threading.Thread | None = None

    def reconfigure(self, config: Config) -> None:
        """Use these limits from now on."""
        self._config = config

    def encode(self, value: Any, receivers: Sequence[int]) -> Payload:
        """Pickle a value for some processes; large buffers go once to shared memory for all."""
        if pickling.are_short_atoms((value,)):
            return self.encode_bytes(pickling.dumps_plain(value))
        buffers: list[Any] = []
        pieces = pickling.dump_pieces(value, buffers)
        size = sum(map(len, pieces))
        if not buffers and size < DETACH_BYTES:
            return Payload(b"".join(pieces))
        raws = [buffer.raw() for buffer in buffers]
        self._check_size(size, raws)
        is_long = size >= self._config.shared_threshold_bytes
        wholes: list[Whole] = [[raw] for raw in raws]
        if is_long:
            wholes.insert(0, [memoryview(piece) for piece in pieces])
        is_constant = not raws and all(type(piece) is bytes for piece in pieces)
        shared = self._share(wholes, receivers, is_constant=is_constant)
        if shared is not None and is_long:
            return Payload(b"", shared, SHARED | LENT)
        flags = DETACHED if size >= DETACH_BYTES else 0
        if shared is not None:
            return Payload(b"".join(pieces), shared, flags | SHARED)
        return Payload(b"".join(pieces), raws, flags)

    def take_back(self, payload: Payload, receivers: Sequence[int]) -> None:
        for segment in _segments(payload):
            for receiver in receivers:
                self.taken_back(segment, receiver)

    def encode_bytes(self, payload: bytes, buffers: Sequence[Any] = ()) -> Payload:
        return Payload(payload, buffers, DETACHED if len(payload) >= DETACH_BYTES else 0)

    def encode_buffer(self, buffer: memoryview, receiver: int) -> Payload:
        """Carry bytes as they are beside a control message; they may change afterwards."""
        shared = self._share([[buffer]], [receiver], is_constant=False)
        return Payload(b"", [buffer]) if shared is None else Payload(b"", shared, SHARED)

    def buffer_of(self, message: Message) -> memoryview:
        """Return what `encode_buffer` was given, to be read; nothing where nothing has come. Raises
        `BrokenError` if who has lent it is gone, `RemoteProtocolError` for nonsense."""
        first = memoryview(message.buffers[0] if message.buffers else b"").cast("B")
        if not message.flags & SHARED:
            return first
        lent = [each for each in read_table(first) if each is not None]
        if len(lent) != 1:
            raise RemoteProtocolError(f"a buffer that is lent as {len(lent)}")
        return self._attach(self._lender_of(message), lent[0], read_only=True)

    def decode(self, message: Message) -> Any:
        """Return the value of a message; unpickles, so never called in the inbox thread."""
        if message.flags & SHARED:
            self._take_up(message)
        if message.flags & LENT:
            payload, *buffers = message.buffers
            return pickling.loads(payload, buffers)
        return pickling.loads(message.payload, message.buffers)

    def decode_user_data(self, message: Message) -> Any:
        return self.decode(_carried(message, message.buffers[-1]))

    def discard(self, message: Message) -> None:
        """Give back the memory that a message for nobody borrows."""
        for segment in _segments(message):
            self._release(self._lender_of(message), segment)

    def check(self, message: Message) -> None:
        """Raise `RemoteProtocolError` for a message whose shared memory makes no sense."""
        _segments(message)

    def unread(self, message: Message) -> Callable[[], object]:
        """Return what decodes a message that lies in shared memory, once; if it is never called,
        the memory is given back."""
        self._start_releaser()
        return _Unread(self, message)

    def discard_later(self, message: Message) -> None:
        for segment in _segments(message):
            self._free(self._lender_of(message), segment)

    def give_back(self) -> None:
        """Give back what nobody uses any more, before its owner hears anything else from here."""
        if self._releaser is not None:
            with self._giving:
                while self._freed:
                    self._release(*self._freed.popleft())

    def _check_size(self, pickled: int, raws: Sequence[memoryview]) -> None:
        size = pickled + sum(raw.nbytes for raw in raws)
        limit = self._config.message_limit_bytes
        if size > limit:
            raise LimitError(
                f"a message of {size} bytes is over the limit of {limit}; send it in parts, or "
                "raise MONARCH_NB_MESSAGE_LIMIT_BYTES",
                limit=limit,
                size=size,
            )

    def _share(
        self, wholes: Sequence[Whole], receivers: Sequence[int], *, is_constant: bool
    ) -> list[Any] | None:
        # Table and inline buffers, or None when the value must travel inline
        threshold = self._config.shared_threshold_bytes
        sizes = [_size(whole) for whole in wholes]
        if max(sizes, default=0) < threshold:
            return None
        holders = [each for each in receivers if each not in self._dead]
        if not holders:
            return None
        is_near = all(each >> HOST_SHIFT == self._host for each in holders)
        large = [whole for whole, size in zip(wholes, sizes, strict=True) if size >= threshold]
        lender = self._lender()
        # nobody can change `bytes`; a gateway takes up what it reads without waiting for it
        lend = lender.promise if is_constant and is_near else lender.lend_pieces
        try:
            handles = iter(lend(large, holders))
        except LimitError:
            if is_near and sum(map(_size, large)) > self._config.inline_limit_bytes:
                raise
            return None
        placed = [next(handles) if size >= threshold else None for size in sizes]
        inline = [whole[0] for whole, handle in zip(wholes, placed, strict=True) if handle is None]
        return [write_table(placed), *inline]

    def _take_up(self, message: Message) -> None:
        # Each lease is taken up once, also when two threads look at one value
        with self._lock:
            if message.flags & SHARED:
                inline, lender = iter(message.buffers[1:]), self._lender_of(message)
                message.take_up(
                    [
                        next(inline) if handle is None else self._attach(lender, handle)
                        for handle in read_table(message.buffers[0])
                    ]
                )

    def _attach(self, owner: int, handle: Handle, *, read_only: bool = False) -> memoryview:
        self._start_releaser()
        freed = functools.partial(self._free, owner, handle.segment)
        return attach(handle, freed, read_only=read_only)

    def _lender_of(self, message: Message) -> int:
        is_relayed = message.flags & RELAYED
        return self._host << HOST_SHIFT | GATEWAY if is_relayed else message.source

    def _lender(self) -> Arena:
        with self._lock:
            if self._arena is None:
                self._arena = Arena(self._config.shared_bytes)
            return self._arena

    def taken_back(self, segment: int, holder: int) -> None:
        if self._arena is not None:
            self._arena.release(segment, holder)

    def forget(self, holder: int) -> None:
        give_up_kept()
        if self._arena is not None:
            self._arena.forget(holder)

    def _free(self, owner: int, segment: int) -> None:
        # by finalizers, anywhere, even where a lock of an outbox is held; so it only queues
        self._freed.append((owner, segment))
        self._wakeups.put(True)  # re-entrant: may run inside any allocation, see SimpleQueue

    def _start_releaser(self) -> None:
        if self._releaser is None:
            self._releaser = threading.Thread(
                target=self._give_back_later, name="monarch-releases", daemon=True
            )
            self._releaser.start()

    def _give_back_later(self) -> None:
        while self._wakeups.get():
            self.give_back()

    def close(self) -> None:
        self._wakeups.put(False)
        if self._releaser is not None and self._releaser is not threading.current_thread():
            self._releaser.join(1)
        if self._arena is not None:
            self._arena.close()


def _carried(message: Message, payload: Buffer) -> Message:
    # the user data in a control message, behind which stands its payload
    header = (0, message.flags, 0, 0, 0, 0, message.source, 0)
    return Message(header, memoryview(payload), message.buffers[:-1])


def _size(whole: Whole) -> int:
    return sum(piece.nbytes for piece in whole)


def _segments(carrier: Payload | Message) -> list[int]:
    # the shared memory that its buffers lie in
    if not carrier.flags & SHARED:
        return []
    return [handle.segment for handle in read_table(carrier.buffers[0]) if handle is not None]


class Handed:
    """Stands for a value in a message of a process to itself: what comes out is the value itself.

    It comes out once; `let_go` when it is known that it will not.
    """

    _numbers: Final = itertools.count(1)

    def __init__(self, value: Any) -> None:
        self._number = next(self._numbers)
        _handed[self._number] = value

    def let_go(self) -> None:
        """Let go of it, if it is there still: nobody will take it any more."""
        _handed.pop(self._number, None)

    def __reduce__(self) -> tuple[object, ...]:
        return _taken, (self._number,)


_handed: Final[dict[int, object]] = {}


def _taken(number: int) -> object:
    return _handed.pop(number)
