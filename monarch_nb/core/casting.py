"""A message to many processes: who they are, written short, and how it is taken apart on the way.

Processes of one mesh on one host have consecutive ids and consecutive ranks, so a *run* of them is
three numbers. A cast crosses each link once, with the runs that lie behind it; the last host makes
a message of it for each of its processes. Pure.

    cast: count u32 | runs | header and payload of the message
    run: process u64 | rank u32 | size u32
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Buffer
from monarch_nb.errors import RemoteProtocolError

MOST_RECEIVERS: Final = 1 << 20
_RANKS: Final = 1 << 32  # what a header can say
_SHORT: Final = 4096  # bytes of runs that are kept for whoever reads the same again
_COUNT: Final = struct.Struct("<I")
RUN: Final = struct.Struct("<QII")
"""A run as it stands in a message."""


class Run(NamedTuple):
    """`size` processes with consecutive ids, from `process` on, and consecutive ranks, from `rank`
    on, which the header of a message to or from each of them has."""

    process: int
    rank: int
    size: int

    @property
    def host(self) -> int:
        return self.process >> HOST_SHIFT

    def members(self) -> Iterator[tuple[int, int]]:
        """Iterate over its processes and their ranks."""
        return zip(
            range(self.process, self.process + self.size),
            range(self.rank, self.rank + self.size),
            strict=True,
        )


def runs_of(members: Iterable[tuple[int, int]]) -> list[Run]:
    """Return the runs of these processes, each with its rank, in this order.

    Example:
        >>> runs_of([(7, 0), (8, 1), (3, 2)])
        [Run(process=7, rank=0, size=2), Run(process=3, rank=2, size=1)]
    """
    return merged(Run(process, rank, 1) for process, rank in members)


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return these runs, with those that follow each other as one."""
    found: list[Run] = []
    first = start = count = 0
    for process, rank, size in runs:
        if count and process == first + count and rank == start + count:
            count += size
            continue
        if count:
            found.append(Run(first, start, count))
        first, start, count = process, rank, size
    if count:
        found.append(Run(first, start, count))
    return found


def by_host(runs: Iterable[Run]) -> Mapping[int, list[Run]]:
    """Return the runs of each host. A run lies on one host, as its ids begin with the host's."""
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(run.host, []).append(run)
    return found


def pack_runs(runs: Sequence[Run]) -> bytes:
    return _COUNT.pack(len(runs)) + b"".join([RUN.pack(*run) for run in runs])


def unpack_runs(data: memoryview) -> tuple[list[Run], memoryview]:
    """Return the runs with which these bytes begin, and the bytes behind them.

    Raises `RemoteProtocolError` where they are not whole, or more than any mesh has.
    """
    if len(data) < _COUNT.size:
        raise RemoteProtocolError("a cast without the number of its runs")
    return read_runs(data[_COUNT.size :], _COUNT.unpack_from(data)[0])


def read_runs(data: memoryview, count: int) -> tuple[list[Run], memoryview]:
    """Return so many runs with which these bytes begin, and the bytes behind them.

    Raises `RemoteProtocolError` as `unpack_runs` does.
    """
    end = RUN.size * count
    if end > len(data):
        raise RemoteProtocolError("the runs of a cast are not whole")
    read = _read_again if end <= _SHORT else _read
    return list(read(bytes(data[:end]))), data[end:]


def _read(packed: bytes) -> Sequence[Run]:
    runs = [Run(*each) for each in RUN.iter_unpack(packed)]
    receivers = 0
    for process, rank, size in runs:
        if rank + size > _RANKS or (process + size - 1) >> HOST_SHIFT != process >> HOST_SHIFT:
            raise RemoteProtocolError("a run of processes that cannot be")
        receivers += size
    if receivers > MOST_RECEIVERS:
        raise RemoteProtocolError("a cast to more processes than there can be")
    return tuple(runs)


_read_again = lru_cache(256)(_read)  # the same mesh is called again and again


class Cast(NamedTuple):
    """A message to many. `bodies`: its header and payload, then its buffers."""

    runs: Sequence[Run]
    bodies: Sequence[Buffer]

    def pack(self, source: int) -> list[Buffer]:
        """Return it as a message to a gateway."""
        inner, *buffers = self.bodies
        header = HEADER.pack(frames.CAST, 0, len(buffers), 0, 0, frames.CONTROL_PORT, source, 0)
        return [b"".join((header, pack_runs(self.runs), inner)), *buffers]

    @staticmethod
    def unpack(payload: bytes | memoryview, buffers: Sequence[Buffer]) -> Cast:
        """Return what a gateway was sent. Raises `RemoteProtocolError` for nonsense."""
        runs, inner = unpack_runs(memoryview(payload))
        if len(inner) < HEADER.size:
            raise RemoteProtocolError("a cast without a message")
        return Cast(runs, [bytes(inner), *buffers])

    def messages(self) -> Iterator[tuple[int, Sequence[Buffer]]]:
        """Iterate over the processes, each with the message as it gets it."""
        inner, *buffers = self.bodies
        for run in self.runs:
            for process, rank in run.members():
                yield process, [frames.with_rank(inner, rank), *buffers]
