"""Stacks of many ranks as one tree: which ranks share which calls, and where they part.

Pure: from stacks to plain data. What a call is called in words, and how a tree is drawn, is decided
elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monarch_nb.core.errors.folding import rank_list
from monarch_nb.core.hangs.stacks import Frame


class Stack(NamedTuple):
    """The calls of one thread, outermost first. `thread` is its name, empty for the main thread."""

    thread: str
    frames: tuple[Frame, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A call that `ranks` share, and what they have called from there.

    The root has neither frame nor thread; other threads than the main one have a thread, no frame.
    """

    ranks: tuple[int, ...]
    children: tuple[Node, ...] = ()
    frame: Frame | None = None
    thread: str = ""

    @property
    def ending(self) -> tuple[int, ...]:
        """The ranks that have called nothing from here: on the root, those that are idle."""
        deeper = {rank for child in self.children for rank in child.ranks}
        return tuple(rank for rank in self.ranks if rank not in deeper)

    def to_json(self) -> dict[str, object]:
        """Return plain data: ranks as `0-2,5`, the frame as file, line and function."""
        told: dict[str, object] = {"ranks": rank_list(self.ranks)}
        if self.frame is not None:
            told["frame"] = self.frame._asdict()
        if self.thread:
            told["thread"] = self.thread
        return {**told, "children": [child.to_json() for child in self.children]}


class Line(NamedTuple):
    """One line of a tree as text: `depth` grows only where ranks part."""

    ranks: tuple[int, ...]
    depth: int
    node: Node
    ends: bool = False  # no call: these ranks are at the line above, while others went deeper


def tree(stacks: Mapping[int, Sequence[Stack]]) -> Node:
    """Return the tree of the stacks of some ranks; a rank without any is idle.

    Example:
        >>> f, g = Frame("a.py", 1, "f"), Frame("a.py", 9, "g")
        >>> found = tree({0: [Stack("", (f,))], 1: [Stack("", (f, g))]})
        >>> [(child.frame, child.ranks, child.ending) for child in found.children]
        [(Frame(file='a.py', line=1, function='f'), (0, 1), (0,))]
    """
    paths = {
        rank: [_path(stack) for stack in of_rank if stack.frames]
        for rank, of_rank in sorted(stacks.items())
    }
    return Node(tuple(paths), _merged(paths))


def lines(root: Node) -> Iterator[Line]:
    """Yield the calls of a tree, outermost first; a chain that all share has one depth."""
    for child in root.children:
        yield from _lines(child, 0)
    if root.ending:
        yield Line(root.ending, 0, root, ends=True)


_Step = tuple[str, Frame | None]


def _path(stack: Stack) -> list[_Step]:
    calls: list[_Step] = [("", frame) for frame in stack.frames]
    return [(stack.thread, None), *calls] if stack.thread else calls


def _merged(paths: Mapping[int, Sequence[Sequence[_Step]]]) -> tuple[Node, ...]:
    below: dict[_Step, dict[int, list[Sequence[_Step]]]] = {}
    for rank, of_rank in paths.items():
        for first, *rest in of_rank:
            below.setdefault(first, {}).setdefault(rank, []).append(rest)
    nodes = [
        Node(tuple(those), _merged(_longer(those)), frame, thread)
        for (thread, frame), those in below.items()
    ]
    return tuple(sorted(nodes, key=lambda node: (bool(node.thread), node.ranks)))


def _longer(paths: Mapping[int, list[Sequence[_Step]]]) -> dict[int, list[Sequence[_Step]]]:
    return {rank: [path for path in of_rank if path] for rank, of_rank in paths.items()}


def _lines(node: Node, depth: int) -> Iterator[Line]:
    while True:
        yield Line(node.ranks, depth, node)
        if len(node.children) != 1 or node.ending:
            break
        [node] = node.children
    if not node.children:
        return
    for child in node.children:
        yield from _lines(child, depth + 1)
    if node.ending:
        yield Line(node.ending, depth + 1, node, ends=True)
