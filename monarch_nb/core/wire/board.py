"""The status board: what one rank is doing, in 128 bytes of shared memory, its record.

Rule: a record is written by one `pack_into` (so threads of one process never mix two) between two
equal counters, and a reader believes it only when both counters agree and a second look shows the
same bytes. Only the queue depth, two bytes, is also written by itself: any value of it goes with
any record. Nobody waits for anybody: a frozen rank stays readable. This file maps no memory and
reads no clock.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from typing import Final, NamedTuple

# counter u32 | state u8 | length of what u8 | queue depth u16 | since (monotonic ns) u64
# | busy ns u64 | calls u32 | failed u32 | what 92 bytes | counter u32
_RECORD: Final = struct.Struct("<IBBHQQII92sI")
_pack_into: Final = _RECORD.pack_into
_QUEUE: Final = struct.Struct("H")
_QUEUE_OFFSET: Final = 6
MAX_QUEUE: Final = 0xFFFF
_COUNT: Final = struct.Struct("<I")
SLOT_BYTES: Final = _RECORD.size
SLOTS: Final = 4096
BOARD_BYTES: Final = SLOTS * (SLOT_BYTES + _COUNT.size)  # the records, then the counts
WHAT_BYTES: Final = 92
_LOOKS: Final = 50  # a writer is done within a microsecond; more looks than this never helped

STARTING: Final = 0
IDLE: Final = 1
BUSY: Final = 2
COLLECTIVE: Final = 3
PAUSED: Final = 4
FAILED: Final = 5
LEAVING: Final = 6
STATES: Final = ("starting", "idle", "busy", "collective", "paused", "failed", "leaving")


class Status(NamedTuple):
    state: int
    since_ns: int
    what: str
    busy_ns: int  # user code ran for so long until `since_ns`; while it is busy, the rest is added
    calls: int  # calls and cells that have ended
    failed: int  # those of them that ended with an exception
    queue: int  # what waits, `MAX_QUEUE` at most
    beat: int  # counts the writes

    @property
    def state_name(self) -> str:
        return STATES[self.state] if self.state < len(STATES) else f"state {self.state}"


class BoardSlot:
    """One rank's place on a board; `buffer` is the whole board, writable where `write` is used."""

    __slots__ = ("_buffer", "_counter", "_offset")

    def __init__(self, buffer: mmap.mmap | bytearray, index: int) -> None:
        self._buffer = buffer
        self._offset = index * SLOT_BYTES
        self._counter = 0

    @property
    def beat(self) -> int:
        """How many records this writer has written, in 32 bits."""
        return self._counter

    def write(
        self,
        state: int,
        since_ns: int,
        what: str = "",
        busy_ns: int = 0,
        calls: int = 0,
        failed: int = 0,
        queue: int = 0,
    ) -> None:
        """Replace the record. `what` is cut to `WHAT_BYTES` bytes of UTF-8."""
        text = _encoded(what) if what else b""
        # zero is what a slot holds that was never written, and what `pack_into` leaves half way
        self._counter = counter = self._counter % 0xFFFFFFFF + 1
        _pack_into(
            self._buffer,
            self._offset,
            counter,
            state,
            len(text),
            min(MAX_QUEUE, queue) if queue else 0,
            since_ns,
            busy_ns,
            calls & 0xFFFFFFFF,
            failed & 0xFFFFFFFF,
            text,
            counter,
        )

    def write_queue(self, depth: int) -> None:
        """Replace the queue depth of the record."""
        depth = min(MAX_QUEUE, depth)
        _QUEUE.pack_into(self._buffer, self._offset + _QUEUE_OFFSET, depth)

    def read(self) -> Status | None:
        """Return the record; None if nothing was written or the writer died in the middle."""
        record = self.whole()
        return None if record is None else parse(record)

    def whole(self) -> bytes | None:
        """Return the bytes of a record that can be believed, or None as `read`."""
        earlier = self.raw()
        for _ in range(_LOOKS):
            record = self.raw()
            if record == earlier and record[:4] == record[-4:] != b"\0\0\0\0":
                return record
            earlier = record
        return None

    def clear(self) -> None:
        """Empty the slot for another rank."""
        self._buffer[self._offset : self._offset + SLOT_BYTES] = bytes(SLOT_BYTES)

    def raw(self) -> bytes:
        """Return the bytes as they are now, perhaps half written."""
        return bytes(self._buffer[self._offset : self._offset + SLOT_BYTES])


class ReadCount:
    """How often the agent has begun to read what a rank wrote to its descriptors, counted before.

    A rank that finds its pipes empty, and the count as it was, knows that nothing is on its way.
    """

    __slots__ = ("_buffer", "_offset")

    def __init__(self, buffer: mmap.mmap | bytearray, index: int) -> None:
        self._buffer = buffer
        self._offset = SLOTS * SLOT_BYTES + index * _COUNT.size

    @property
    def value(self) -> int:
        """The count, modulo 2**32."""
        return int(_COUNT.unpack_from(self._buffer, self._offset)[0])

    def add(self) -> None:
        """Count one. The agent."""
        _COUNT.pack_into(self._buffer, self._offset, (self.value + 1) & 0xFFFFFFFF)


@lru_cache(256)  # a rank runs the same few endpoints again and again
def _encoded(what: str) -> bytes:
    return what.encode("utf-8", "replace")[:WHAT_BYTES]


def parse(record: bytes) -> Status:
    beat, state, size, queue, since_ns, busy_ns, calls, failed, what, _ = _RECORD.unpack(record)
    text = what[:size].decode("utf-8", "ignore")
    return Status(state, since_ns, text, busy_ns, calls, failed, queue, beat)
