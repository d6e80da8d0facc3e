"""Equal answers of many ranks travel as one message: on each host, and where hosts come together.

What ranks answer to a cast is held until all of this host have answered, or for a moment; then it
leaves as one message, in which each payload stands once, with the runs of ranks that gave it. What
is no short answer to a cast is never held, and whatever else goes to the same process is preceded
by what is held for it: so nothing overtakes anything. Pure.

    fold: port u64 | groups      group: kind u8 | tag u32 | length u32 | runs | payload
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.casting import Run, merged, pack_runs, unpack_runs
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, Buffer
from monarch_nb.errors import RemoteProtocolError

HOLD_S: Final = 0.002
TREE_HOLD_S: Final = 0.01
"""Where answers of other hosts are folded too."""
_MOST_BYTES: Final = 1 << 17  # that are held of a cast
_LONGEST: Final = 4096  # bytes of a payload; of longer ones few are equal
_MOST_CASTS: Final = 4096  # that one process may have answers of to come; then the oldest go alone
_FOLDED_KINDS: Final = (frames.REPLY, frames.CONTROL)
_PORT: Final = struct.Struct("<Q")
_GROUP: Final = struct.Struct("<BII")


class Numbered(NamedTuple):
    """A record of the session between the controller and a host, and the last one that the host
    has got."""

    host: int
    number: int
    has_come: int


class Leaves(NamedTuple):
    """A message that leaves, and the process that it is from. Of folded answers, `numbered` has the
    records of hosts further down that are in it."""

    source: int
    bodies: Sequence[Buffer]
    numbered: Sequence[Numbered] = ()


Leaving = list[Leaves]


class Group(NamedTuple):
    """The same answer, given by each process of these runs."""

    kind: int
    tag: int
    runs: Sequence[Run]
    payload: bytes | memoryview


class ReplyFolder:
    """Holds what the processes of a host answer to processes of others, which asked many at once.

    `own` is the gateway in whose name folded answers travel.
    """

    def __init__(self, own: int) -> None:
        self._own = own
        self._asked: dict[int, _Asked] = {}  # by who has asked
        self._holding: set[int] = set()  # those for whom something is held

    @property
    def is_holding(self) -> bool:
        return bool(self._holding)

    def expect(self, caller: int, port: int, count: int) -> None:
        """Note that so many processes here owe an answer to this port of a process."""
        self._asked.setdefault(caller, _Asked(self._own)).expect(port, count)

    def take(self, source: int, caller: int, bodies: Sequence[Buffer]) -> Leaving:
        """Take a message from a process here to one that may have asked; return what leaves now, in
        order. Raises `RemoteProtocolError`."""
        asked = self._asked.get(caller)
        if asked is None:
            return [Leaves(source, bodies)]
        header = frames.parse_header(bytes(memoryview(bodies[0])[: HEADER.size]))
        if header[0] == frames.BATCH:
            leaving = []
            for one, frame in _opened(header, bytes(bodies[0])):
                leaving += asked.take(source, one, [frame])
        else:
            leaving = asked.take(source, header, bodies)
        self._note(caller, asked)
        return leaving

    def take_fold(
        self, source: int, caller: int, numbered: Sequence[Numbered], folded: bytes
    ) -> Leaving:
        """Take what the gateway of a host further down has folded; return what leaves now, in
        order. Raises `RemoteProtocolError`."""
        asked = self._asked.get(caller)
        if asked is None:
            return [Leaves(self._own, [framed(folded)], numbered)]
        leaving = asked.take_fold(source, numbered, folded)
        self._note(caller, asked)
        return leaving

    def _note(self, caller: int, asked: _Asked) -> None:
        if asked.is_holding:
            self._holding.add(caller)
            return
        self._holding.discard(caller)
        if asked.is_over:
            del self._asked[caller]

    def let_go(self) -> dict[int, Leaving]:
        """Return all that is held, by who has asked: it has been held long enough."""
        found = {caller: self._asked[caller].release() for caller in self._holding}
        self._holding.clear()
        return found

    def forget(self) -> None:
        """Forget all: those that have asked are lost."""
        self._asked.clear()
        self._holding.clear()


class _Asked:
    """The casts of one process, and the answers to them that are held."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._casts: dict[int, _Cast] = {}  # by the port for answers, in the order of asking
        self._numbers = itertools.count()
        self._newest: dict[int, int] = {}  # of who has answered: the last cast that it answered
        self.is_holding = False

    @property
    def is_over(self) -> bool:
        return not self._casts

    def expect(self, port: int, count: int) -> None:
        casts = self._casts
        if port not in casts:
            casts[port] = _Cast(port, next(self._numbers))
        casts[port].missing += count
        if len(casts) > _MOST_CASTS:
            idle = (port for port, each in casts.items() if not each.groups)
            if (oldest := next(idle, None)) is not None:
                del casts[oldest]

    def take(self, source: int, header: tuple[int, ...], bodies: Sequence[Buffer]) -> Leaving:
        kind, flags, buffers, rank, tag, port, _, _ = header
        payload = memoryview(bodies[0])[HEADER.size :]
        cast = self._casts.get(port)
        is_short = kind in _FOLDED_KINDS and not flags | buffers and len(payload) <= _LONGEST
        if cast is None or not is_short:
            leaving = [*self.release(), Leaves(source, bodies)]
        else:
            leaving = self._hold(cast, source)
            cast.add(kind, tag, bytes(payload), [Run(source, rank, 1)])
        if cast is not None:
            leaving += self._came(cast, 1)
        return leaving

    def take_fold(self, source: int, numbered: Sequence[Numbered], folded: bytes) -> Leaving:
        port, groups = unfold(folded)
        cast = self._casts.get(port)
        if cast is None:
            return [*self.release(), Leaves(self._own, [framed(folded)], numbered)]
        leaving = self._hold(cast, source)
        for kind, tag, runs, payload in groups:
            cast.add(kind, tag, bytes(payload), runs)
        cast.numbered.extend(numbered)
        return leaving + self._came(cast, sum(run.size for each in groups for run in each.runs))

    def _hold(self, cast: _Cast, source: int) -> Leaving:
        # casts leave in their order: who answers in another has its first answers leave before
        is_next = cast.number > self._newest.get(source, -1)
        leaving = [] if is_next else self.release()
        self._newest[source] = cast.number
        self.is_holding = True
        return leaving

    def _came(self, cast: _Cast, answers: int) -> Leaving:
        cast.missing -= answers
        if cast.missing > 0:
            return self.release() if cast.size > _MOST_BYTES else []
        self._casts.pop(cast.port, None)
        return self._release_until(cast)

    def release(self) -> Leaving:
        """Return all that is held."""
        if not self.is_holding:
            return []
        self.is_holding = False
        self._newest.clear()
        return [each.take(self._own) for each in self._casts.values() if each.groups]

    def _release_until(self, last: _Cast) -> Leaving:
        held = [each for each in self._casts.values() if each.groups]
        self.is_holding = any(each.number > last.number for each in held)
        before = [each.take(self._own) for each in held if each.number < last.number]
        return [*before, last.take(self._own)] if last.groups else before


class _Cast:
    """`missing` answers have not come; `groups` are held, in the order of their answers, and
    `numbered` says which records of other hosts they are."""

    def __init__(self, port: int, number: int) -> None:
        self.port = port
        self.number = number
        self.missing = 0
        self.groups: dict[tuple[int, int, bytes], list[Run]] = {}
        self.numbered: list[Numbered] = []
        self.size = 0

    def add(self, kind: int, tag: int, payload: bytes, runs: Sequence[Run]) -> None:
        group = self.groups.get((kind, tag, payload))
        if group is None:
            group = self.groups[kind, tag, payload] = []
            self.size += len(payload)
        group.extend(runs)

    def take(self, own: int) -> Leaves:
        """Return what is held as one message, and hold it no more."""
        groups, self.groups = self.groups, {}
        numbered, self.numbered = self.numbered, []
        self.size = 0
        found = [
            Group(kind, tag, merged(sorted(runs)), payload)
            for (kind, tag, payload), runs in groups.items()
        ]
        return Leaves(own, [framed(fold(self.port, found))], numbered)


def fold(port: int, groups: Sequence[Group]) -> bytes:
    """Return answers to a port as they travel together."""
    parts: list[Buffer] = [_PORT.pack(port)]
    for kind, tag, runs, payload in groups:
        parts += [_GROUP.pack(kind, tag, len(payload)), pack_runs(runs), payload]
    return b"".join(parts)


def framed(folded: bytes | memoryview) -> bytes:
    """Return folded answers as a message to who has asked."""
    return HEADER.pack(frames.FOLD, 0, 0, 0, 0, frames.FOLD_PORT, 0, 0) + folded


def _opened(header: tuple[int, ...], batch: bytes) -> Iterator[tuple[tuple[int, ...], bytes]]:
    # the headers and frames of a batch
    for each in frames.unpack_batch(header, batch):
        fields = (each.kind, each.flags, 0, each.rank, each.tag, each.port, each.source)
        one = (*fields, each.reply)
        yield one, HEADER.pack(*one) + bytes(each.payload)


def unfold(payload: bytes | memoryview) -> tuple[int, list[Group]]:
    """Return the port that folded answers are for, and what was answered.

    Raises `RemoteProtocolError` where they are not whole.
    """
    rest = memoryview(payload)
    if len(rest) < _PORT.size:
        raise RemoteProtocolError("folded answers without a port")
    (port,) = _PORT.unpack_from(rest)
    rest = rest[_PORT.size :]
    groups: list[Group] = []
    while rest:
        if len(rest) < _GROUP.size:
            raise RemoteProtocolError("a group of folded answers is not whole")
        kind, tag, length = _GROUP.unpack_from(rest)
        runs, rest = unpack_runs(rest[_GROUP.size :])
        if length > len(rest) or kind not in _FOLDED_KINDS:
            raise RemoteProtocolError("folded answers that are none")
        groups.append(Group(kind, tag, runs, rest[:length]))
        rest = rest[length:]
    return port, groups
