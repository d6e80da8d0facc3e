"""A cast to many hosts goes down a tree of them, and folded answers come up it.

A host in the tree has a session with the controller, whose records are numbered. What is said to
one host only goes as a record of that session, through the hosts above it. A cast, and folded
answers, are said once for all hosts that lie behind a link, with the number that the record has in
the session of each: so a host knows what it has had, on whichever way it came. Pure.

    tree cast: count u32 | nodes | runs | number u64 of each node | piece
    node: host u32 | how many of the next nodes are below it u32 | how many of the runs are its u32
    tree fold: count u32 | host u32, number u64, the last that has come u64 of each | fold
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from monarch_nb.core import reply_folding
from monarch_nb.core.casting import RUN, Run, read_runs
from monarch_nb.core.reply_folding import Numbered
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Message
from monarch_nb.errors import RemoteProtocolError

MOST_HOSTS: Final = 1 << 16
_COUNT: Final = struct.Struct("<I")
_NODE: Final = struct.Struct("<III")
_NUMBERED: Final = struct.Struct("<IQQ")
_NUMBER_BYTES: Final = 8


class Node(NamedTuple):
    """A host in a tree that is written in preorder: the `below` next ones are under it; its
    processes are the next `runs`."""

    host: int
    below: int
    runs: int


class Branch(NamedTuple):
    """A host and those under it, with what a cast is to each of them."""

    nodes: Sequence[Node]
    runs: Sequence[Run]

    @property
    def receivers(self) -> int:
        """How many processes get the cast."""
        return sum(run.size for run in self.runs)

    @property
    def own_runs(self) -> Sequence[Run]:
        """Those of the first host."""
        return self.runs[: self.nodes[0].runs]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Iterate over the branches under the first host: where the nodes of each begin and end."""
        at = 1
        while at < len(self.nodes):
            end = at + 1 + self.nodes[at].below
            yield at, end
            at = end

    def part(self, begin: int, end: int) -> Branch:
        """Return the branch of which these are the nodes."""
        before = sum(node.runs for node in self.nodes[:begin])
        size = sum(node.runs for node in self.nodes[begin:end])
        return Branch(self.nodes[begin:end], self.runs[before : before + size])

    def alone(self, at: int) -> Branch:
        """Return the host at this place without those under it."""
        part = self.part(at, at + 1)
        return part._replace(nodes=[part.nodes[0]._replace(below=0)])

    @staticmethod
    def of(
        top: int, under: Mapping[int, Sequence[int]], runs: Mapping[int, Sequence[Run]]
    ) -> Branch:
        """Return the branch of `top`: `under` each host are these, and it has these runs."""
        nodes: list[Node] = []
        found: list[Run] = []

        def add(host: int) -> None:
            at, own = len(nodes), runs.get(host, ())
            nodes.append(Node(host, 0, len(own)))
            found.extend(own)
            for each in under.get(host, ()):
                add(each)
            nodes[at] = nodes[at]._replace(below=len(nodes) - at - 1)

        add(top)
        return Branch(nodes, found)

    def pack(self) -> bytes:
        """Return it as it stands in a message."""
        nodes = [_NODE.pack(*each) for each in self.nodes]
        runs = [RUN.pack(*each) for each in self.runs]
        return b"".join([_COUNT.pack(len(nodes)), *nodes, *runs])

    @staticmethod
    def unpack(data: memoryview) -> tuple[Branch, memoryview]:
        """Return the branch with which these bytes begin, and the bytes behind it.

        Raises `RemoteProtocolError` for nonsense.
        """
        count, rest = _count(data)
        end = count * _NODE.size
        if not count or end > len(rest):
            raise RemoteProtocolError("a cast for a tree of hosts is not whole")
        nodes = [Node(*each) for each in _NODE.iter_unpack(rest[:end])]
        if not _is_tree(nodes):
            raise RemoteProtocolError("a cast for hosts that are no tree")
        runs, rest = read_runs(rest[end:], sum(node.runs for node in nodes))
        return Branch(nodes, runs), rest


class TreeCast(NamedTuple):
    """A cast, or a piece of a long one, for a branch of the tree. `caller` asks, and is answered at
    its port `reply`; `numbers`: one for each node, of the first 0 if its record is counted already.
    `piece`: of the message, as it goes onto a link."""

    caller: int
    reply: int
    branch: Branch
    numbers: list[int]
    piece: bytes

    @property
    def host(self) -> int:
        return self.branch.nodes[0].host

    def under(self) -> Iterator[TreeCast]:
        """Iterate over what goes on to hosts right under the first. One without a number gets it
        alone, and so do those under it."""
        for begin, end in self.branch.spans():
            if self.numbers[begin]:
                yield self.part(begin, end)

    def part_of(self, host: int) -> TreeCast:
        """Return it for the branch of a host."""
        at = self._place(host)
        return self.part(at, at + 1 + self.branch.nodes[at].below)

    def alone(self, host: int) -> TreeCast:
        """Return it as a host gets it alone, as part of a record of its own session."""
        at = self._place(host)
        return self._replace(branch=self.branch.alone(at), numbers=[0])

    def _place(self, host: int) -> int:
        return next(at for at, node in enumerate(self.branch.nodes) if node.host == host)

    def part(self, begin: int, end: int) -> TreeCast:
        """Return it for the branch of which these are the nodes."""
        part = self.branch.part(begin, end)
        return self._replace(branch=part, numbers=self.numbers[begin:end])

    def counted(self) -> TreeCast:
        """Return it as part of a record of the first host's own session."""
        return self._replace(numbers=[0, *self.numbers[1:]])

    def head(self, packed: bytes | None = None) -> bytes:
        """Return the message to a gateway, but for the piece that ends it. `packed`: its branch."""
        port = frames.CONTROL_PORT
        header = HEADER.pack(frames.TREE_CAST, 0, 0, 0, 0, port, self.caller, self.reply)
        numbers = struct.pack(f"<{len(self.numbers)}Q", *self.numbers)
        return b"".join((header, self.branch.pack() if packed is None else packed, numbers))

    @staticmethod
    def unpack(message: Message) -> TreeCast:
        """Return what a gateway was sent. Raises `RemoteProtocolError` for nonsense."""
        branch, rest = Branch.unpack(memoryview(message.payload))
        count = len(branch.nodes)
        end = count * _NUMBER_BYTES
        if end > len(rest):
            raise RemoteProtocolError("a cast for a tree of hosts without numbers of its records")
        numbers = list(struct.unpack(f"<{count}Q", rest[:end]))
        return TreeCast(message.source, message.reply, branch, numbers, bytes(rest[end:]))


def _is_tree(nodes: Sequence[Node]) -> bool:
    # each lies wholly in what it is under, and the first has them all
    ends: list[int] = []
    for at, node in enumerate(nodes):
        while ends and ends[-1] == at:
            ends.pop()
        end = at + 1 + node.below
        if end > (ends[-1] if ends else len(nodes)):
            return False
        ends.append(end)
    return nodes[0].below == len(nodes) - 1


class TreeFold(NamedTuple):
    """Folded answers to `caller` of several hosts, and the record of each that they are."""

    caller: int
    numbered: Sequence[Numbered]
    fold: bytes | memoryview

    def pack(self, source: int) -> bytes:
        """Return it as a message to a gateway."""
        header = HEADER.pack(frames.TREE_FOLD, 0, 0, 0, 0, frames.CONTROL_PORT, source, self.caller)
        numbered = [_NUMBERED.pack(*each) for each in self.numbered]
        return b"".join([header, _COUNT.pack(len(numbered)), *numbered, self.fold])

    @staticmethod
    def unpack(message: Message) -> TreeFold:
        """Return what a gateway was sent. Raises `RemoteProtocolError` for nonsense."""
        count, rest = _count(memoryview(message.payload))
        end = count * _NUMBERED.size
        if end > len(rest):
            raise RemoteProtocolError("folded answers of a tree of hosts are not whole")
        numbered = [Numbered(*each) for each in _NUMBERED.iter_unpack(rest[:end])]
        return TreeFold(message.reply, numbered, rest[end:])

    def without(self, hosts: Iterable[int]) -> bytes | None:
        """Return the folded answers but for those of these hosts; None where none is left."""
        left_out = frozenset(hosts)
        port, groups = reply_folding.unfold(self.fold)
        kept = []
        for group in groups:
            runs = [run for run in group.runs if run.process >> HOST_SHIFT not in left_out]
            if runs:
                kept.append(group._replace(runs=runs))
        return reply_folding.fold(port, kept) if kept else None


def _count(data: memoryview) -> tuple[int, memoryview]:
    if len(data) < _COUNT.size:
        raise RemoteProtocolError("a message for a tree of hosts without their number")
    (count,) = _COUNT.unpack_from(data)
    if count > MOST_HOSTS:
        raise RemoteProtocolError("a message for more hosts than there can be")
    return count, data[_COUNT.size :]
