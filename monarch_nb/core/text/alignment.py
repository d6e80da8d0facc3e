"""What several ranks have said, as one text: what they have in common once, else rank after rank.

Rules of the file: pure; the pieces of one rank stay in order. A piece that all ranks have said is a
place where they meet. Between two such places stands what each rank has said, in one go, in the
order of ranks; ranks that begin with the same share what they have in common in turn. An indented
line, or one without a letter or a digit, belongs to what stands around it: ranks do not meet there
alone, or a heading would be torn from its lines.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

Piece = tuple[str, str]
"""A stream, and a line of it; several lines that were written at once are one piece."""

MAX_NESTING: Final = 50  # groups in groups; who is further in stands alone

_MEANS_SOMETHING: Final = re.compile(r"(?!\s).*[^\W_]")


class Run(NamedTuple):
    """Pieces that these ranks have said, one after the other."""

    ranks: tuple[int, ...]
    pieces: Sequence[Piece]


def aligned(said: Mapping[int, Sequence[Piece]]) -> list[Run]:
    """Return all that was said, in the order in which it is to be shown.

    Example:
        >>> one, two = [("stdout", "step 1"), ("stdout", "loss 0.3")], [("stdout", "step 1")]
        >>> [(run.ranks, [text for _, text in run.pieces]) for run in aligned({0: one, 1: two})]
        [((0, 1), ['step 1']), ((0,), ['loss 0.3'])]
    """
    spoken = {rank: pieces for rank, pieces in sorted(said.items()) if pieces}
    return list(_together(spoken, 0)) if spoken else []


def is_meeting(piece: Piece) -> bool:
    """Tell whether ranks that have said it can meet there."""
    text = piece[1]
    return "\n" in text or _MEANS_SOMETHING.match(text) is not None


def _together(said: Mapping[int, Sequence[Piece]], depth: int) -> Iterator[Run]:
    ranks, of = tuple(said), list(said.values())
    if all(pieces == of[0] for pieces in of):
        yield Run(ranks, of[0])
        return
    begun = [0] * len(of)
    for first, count in _meetings(of):
        yield from _apart(_between(said, begun, first), depth)
        yield Run(ranks, of[0][first[0] : first[0] + count])
        begun = [place + count for place in first]
    yield from _apart(_between(said, begun, map(len, of)), depth)


def _between(
    said: Mapping[int, Sequence[Piece]], begun: Iterable[int], ended: Iterable[int]
) -> dict[int, Sequence[Piece]]:
    parts = zip(said.items(), begun, ended, strict=True)
    return {rank: pieces[start:end] for (rank, pieces), start, end in parts if start < end}


def _apart(said: Mapping[int, Sequence[Piece]], depth: int) -> Iterator[Run]:
    # Nothing here was said by all. Who begins alike is a group of its own, smaller than the whole.
    groups: dict[tuple[Piece, ...], dict[int, Sequence[Piece]]] = {}
    for rank, pieces in said.items():
        groups.setdefault(_beginning(pieces), {})[rank] = pieces
    for group in groups.values():
        if depth < MAX_NESTING:
            yield from _together(group, depth + 1)
        else:
            yield from (Run((rank,), pieces) for rank, pieces in group.items())


def _beginning(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    for count, piece in enumerate(pieces, 1):
        if is_meeting(piece):
            return tuple(pieces[:count])
    return tuple(pieces)


def _meetings(of: Sequence[Sequence[Piece]]) -> Iterator[tuple[list[int], int]]:
    # Where ranks meet, as a place in each of their sequences, and how many pieces long
    where = [_places(pieces) for pieces in of[1:]]
    ended = [0] * len(of)
    for place, piece in enumerate(of[0]):
        if place < ended[0] or not is_meeting(piece):
            continue
        found = [place]
        for places, end in zip(where, ended[1:], strict=True):
            known = places.get(piece, ())
            at = bisect_right(known, end - 1)
            if at == len(known):
                break
            found.append(known[at])
        else:
            before = _equal(of, found, -1, ended)
            after = _equal(of, found, 1, ended)
            yield [at - before for at in found], before + 1 + after
            ended = [at + 1 + after for at in found]


def _places(pieces: Sequence[Piece]) -> dict[Piece, list[int]]:
    places: dict[Piece, list[int]] = {}
    for place, piece in enumerate(pieces):
        places.setdefault(piece, []).append(place)
    return places


def _equal(
    of: Sequence[Sequence[Piece]], found: Sequence[int], step: int, ended: Sequence[int]
) -> int:
    # How many pieces next to those found are equal in all
    count = 0
    while True:
        places = [at + step * (count + 1) for at in found]
        if any(
            place < end or place >= len(pieces)
            for place, end, pieces in zip(places, ended, of, strict=True)
        ):
            return count
        if any(pieces[place] != of[0][places[0]] for place, pieces in zip(places, of, strict=True)):
            return count
        count += 1
