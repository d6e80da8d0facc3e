"""Whether the ranks of a mesh are in step in their process groups, and which waits end no more.

Pure functions of what ranks tell of themselves. Ranks are in step in a group if each has begun as
many operations as the others, and has left none before it had ended. What was begun by some only
would be ended by whatever the others begin next: old data, in new tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.hangs.collectives import DEFAULT_GROUP
from monarch_nb.core.wire.messages.groups import Awaited, GroupCounts, GroupWait, Standings

_TO: Final = "to "
_FROM: Final = "from "
ANYBODY: Final = "from *"


class Difference(NamedTuple):
    """A group in which ranks are out of step: its members that have it, those that do not, and what
    has happened, in words; whether an operation was left, which nothing but a new group mends."""

    name: str
    ranks: tuple[int, ...]
    lacking: tuple[int, ...]
    what: str
    is_left: bool


def differences(told: Mapping[int, Standings]) -> list[Difference]:
    """Return the groups in which members are out of step, of those of which all members tell.

    Example:
        >>> def rank(begun: int) -> Standings:
        ...     return Standings([GroupCounts("0", [0, 1], {"cpu": begun}, "")], [], True)
        >>> [found] = differences({0: rank(5), 1: rank(6)})
        >>> found.what
        'rank 1 had begun more collectives than rank 0'
    """
    groups: dict[str, dict[int, GroupCounts]] = {}
    for rank, standings in sorted(told.items()):
        for group in standings.groups:
            groups.setdefault(group.name, {})[rank] = group
    found = []
    for name, have in groups.items():
        members = sorted({rank for each in have.values() for rank in each.ranks})
        if not told.keys() >= set(members):
            continue
        lacking = tuple(rank for rank in members if rank not in have)
        if what := _difference(have, lacking):
            is_left = any(group.left for group in have.values())
            found.append(Difference(name, tuple(have), lacking, what, is_left))
    return sorted(found)


def _difference(have: Mapping[int, GroupCounts], lacking: Sequence[int]) -> str:
    left: dict[str, list[int]] = {}
    for rank, group in have.items():
        if group.left:
            left.setdefault(group.left, []).append(rank)
    if left:
        return "; ".join(
            f"{rank_words(ranks)} had left {what} before its end" for what, ranks in left.items()
        )
    if lacking:
        return f"{rank_words(lacking)} had not come to it"
    return _uneven(have) or _unreceived(have)


def _uneven(have: Mapping[int, GroupCounts]) -> str:
    kinds = {kind for group in have.values() for kind in group.counts if not _is_to_one(kind)}
    for kind in sorted(kinds):
        counts = {rank: group.counts.get(kind, 0) for rank, group in have.items()}
        least = min(counts.values())
        ahead = [rank for rank, count in counts.items() if count > least]
        behind = [rank for rank, count in counts.items() if count == least]
        if ahead:
            return f"{rank_words(ahead)} had begun more collectives than {rank_words(behind)}"
    return ""


def _unreceived(have: Mapping[int, GroupCounts]) -> str:
    for rank, group in have.items():
        received = {kind: count for kind, count in group.counts.items() if kind.startswith(_FROM)}
        sent = {each: other.counts.get(f"{_TO}{rank}", 0) for each, other in have.items()}
        if ANYBODY in received:
            is_even = sum(received.values()) == sum(sent.values())
        else:
            is_even = all(received.get(f"{_FROM}{each}", 0) == n for each, n in sent.items())
        if not is_even:
            return f"rank {rank} had not received what was sent to it, or waited for more"
    return ""


def _is_to_one(kind: str) -> bool:
    return kind.startswith((_TO, _FROM))


def waits_in_vain(
    rank: int, wait: GroupWait, failed: Collection[int], told: Mapping[int, Standings]
) -> list[int]:
    """Return the ranks for which this wait of a rank will never end, of those that have failed;
    none if each thing that is awaited may still come."""
    missing = [_missing(rank, each, failed, told) for each in wait.awaited]
    if not missing or not all(missing):
        return []
    return sorted({peer for peers in missing for peer in peers})


def _missing(
    rank: int, awaited: Awaited, failed: Collection[int], told: Mapping[int, Standings]
) -> list[int]:
    gone = [peer for peer in awaited.peers if peer in failed and peer in told]
    if awaited.kind == ANYBODY:
        return gone if len(gone) == len(awaited.peers) else []
    if not awaited.kind:
        return gone
    theirs = _counterpart(rank, awaited.kind)
    return [peer for peer in gone if _count(told[peer], awaited.group, theirs) < awaited.number]


def _counterpart(rank: int, kind: str) -> str:
    if kind.startswith(_TO):
        return f"{_FROM}{rank}"
    return f"{_TO}{rank}" if kind.startswith(_FROM) else kind


def _count(standings: Standings, group: str, kind: str) -> int:
    return next((each.counts.get(kind, 0) for each in standings.groups if each.name == group), 0)


def words(found: Sequence[Difference]) -> str:
    """Return what has become of groups in which ranks were out of step, and why.

    Example:
        >>> words([Difference("0", (0, 1), (), "rank 0 had left all_reduce before its end", True)])
        'a new process group: rank 0 had left all_reduce before its end'
    """
    made = [each for each in found if not each.lacking]
    gone = [each for each in found if each.lacking]
    told = []
    if made:
        groups = "a new process group" if len(made) == 1 else f"{len(made)} new process groups"
        told.append(f"{groups}{_names(made)}: {_whats(made)}")
    if gone:
        groups = "the process group is" if len(gone) == 1 else f"{len(gone)} process groups are"
        told.append(f"{groups} gone{_names(gone)}: {_whats(gone)}")
    return "; ".join(told)


def _names(found: Sequence[Difference]) -> str:
    names = [each.name for each in found if each.name != DEFAULT_GROUP]
    return f" ({'; '.join(names)})" if names else ""


def _whats(found: Sequence[Difference]) -> str:
    return "; ".join(dict.fromkeys(each.what for each in found))
