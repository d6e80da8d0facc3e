"""The collectives of ranks, side by side: which came last, and where ranks disagree first.

Pure functions of what PyTorch's recorder has noted on each rank. A collective has a number in its
group; ranks that do what they should have the same one under each number. Where they do not, words
say who is where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.errors.folding import rank_words

DEFAULT_GROUP: Final = "0"
ELSEWHERE: Final = "elsewhere"  # of a rank that tells no stack
SHORT_TYPES: Final = {
    "Float": "f32", "Double": "f64", "Half": "f16", "BFloat16": "bf16", "Long": "i64",
    "Int": "i32", "Short": "i16", "Char": "i8", "Byte": "u8", "Bool": "bool",
}  # fmt: skip
_SIZED: Final = frozenset({"all_reduce", "broadcast", "reduce", "all_gather"})
"""Whose tensors have the same size on all ranks."""
_MANY: Final = 3  # tensors of one collective that are told


class Entry(NamedTuple):
    """One collective of a rank: `tensors` as `f32[1024]`."""

    group: str
    seq: int
    op: str
    tensors: str
    done: bool

    @property
    def name(self) -> str:
        """`all_reduce #18`."""
        of = "" if self.group == DEFAULT_GROUP else f" of group {self.group}"
        return f"{self.op} #{self.seq}{of}"

    @property
    def text(self) -> str:
        """`all_reduce #18 f32[1024]`."""
        return f"{self.name} {self.tensors}" if self.tensors else self.name


class Standing(NamedTuple):
    """Where one rank is: `place` in words ("in a.py:3 f()", "idle"), and if it waits for others, in
    what and for how long. `members` are the ranks of the groups that it belongs to."""

    entries: Sequence[Entry] = ()
    members: Mapping[str, Sequence[int]] = {}
    place: str = ""
    waits_in: str = ""
    waits_s: float = 0.0


class NotRegroupedError(Exception):
    """Some ranks did not come into a new process group; why, in words."""

    def __init__(self, ranks: Sequence[int], why: str) -> None:
        super().__init__(f"{rank_words(ranks)} {why}")
        self.ranks = ranks


def tensors_text(dtypes: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    """Return `f32[4,2]`; of many the first few.

    Example:
        >>> tensors_text(["Float", "Long"], [[4, 2], []])
        'f32[4,2] i64[]'
    """
    told = [
        f"{SHORT_TYPES.get(dtype, dtype)}[{','.join(map(str, size))}]"
        for dtype, size in zip(dtypes, sizes, strict=False)
    ]
    more = f" and {len(told) - _MANY} more" if len(told) > _MANY else ""
    return " ".join(told[:_MANY]) + more


def pending(entries: Iterable[Entry]) -> Entry | None:
    """Return the collective that a rank waits in: the first of those that have not ended."""
    found = None
    for entry in entries:
        if entry.done:
            found = None
        elif found is None:
            found = entry
    return found


def disagreement(standings: Mapping[int, Standing]) -> str:
    """Return the first collective at which ranks differ, in words; empty where they agree.

    Example:
        >>> disagreement({
        ...     0: Standing([Entry("0", 18, "all_reduce", "f32[1024]", False)]),
        ...     1: Standing([Entry("0", 18, "broadcast", "f32[1024]", False)]),
        ... })
        'rank 0 waits in all_reduce #18 f32[1024]; rank 1 is in broadcast #18 f32[1024]'
    """
    for group in _groups(standings):
        by_rank = _entries_by_rank(standings, group)
        for seq in _numbers(by_rank):
            there = {rank: entries[seq] for rank, entries in by_rank.items() if seq in entries}
            if len({_signature(entry) for entry in there.values()}) > 1:
                return _differing(there)
            missing = [
                rank
                for rank, entries in by_rank.items()
                if seq not in entries and max(entries, default=0) < seq
            ]
            if missing and not all(entry.done for entry in there.values()):
                return _missing(there, missing, standings)
    return ""


def line(standings: Mapping[int, Standing]) -> str:
    """Say who waits in what for how long, and where the others are.

    Example:
        >>> found = {0: Standing(waits_in="all_reduce", waits_s=6), 1: Standing(place="in f()")}
        >>> line(found)
        'rank 0 in all_reduce for 6 s; rank 1 in f()'
    """
    sized = _differs_in_size(standings)
    said: dict[str, list[int]] = {}
    waits_s: dict[str, float] = {}
    for rank, standing in sorted(standings.items()):
        text = _where(standing, sized=sized)
        said.setdefault(text, []).append(rank)
        if standing.waits_in:
            waits_s[text] = max(standing.waits_s, waits_s.get(text, 0.0))
    parts = [
        f"{rank_words(ranks)} {text}" + (f" for {waits_s[text]:.0f} s" if text in waits_s else "")
        for text, ranks in sorted(said.items(), key=lambda each: each[0] not in waits_s)
    ]
    return "; ".join(parts)


def _where(standing: Standing, *, sized: bool = False) -> str:
    waiting = _waiting_text(standing, sized=sized)
    return f"in {waiting}" if waiting else standing.place or ELSEWHERE


def _waiting_text(standing: Standing, *, sized: bool) -> str:
    # `all_reduce #18`: what the user has called, with the number of what it waits for
    if not standing.waits_in:
        return ""
    entry = pending(standing.entries)
    if entry is None:
        return standing.waits_in
    told = (entry.text if sized else entry.name).removeprefix(entry.op)
    is_known = standing.waits_in == "wait"  # of a work: which one it is, the recorder knows
    return f"{entry.op if is_known else standing.waits_in}{told}"


def _differs_in_size(standings: Mapping[int, Standing]) -> bool:
    waiting = [pending(each.entries) for each in standings.values() if each.waits_in]
    found = {(each.group, each.seq, each.op, each.tensors) for each in waiting if each is not None}
    return len({each[:3] for each in found}) < len(found)


def _groups(standings: Mapping[int, Standing]) -> list[str]:
    found = {entry.group for each in standings.values() for entry in each.entries}
    return sorted(found, key=lambda group: (group != DEFAULT_GROUP, group))


def _entries_by_rank(standings: Mapping[int, Standing], group: str) -> dict[int, dict[int, Entry]]:
    # Of the members of a group: by number. A rank that is in no group yet is one of the first.
    found = {}
    members = {rank for each in standings.values() for rank in each.members.get(group, ())}
    for rank, standing in sorted(standings.items()):
        entries = {entry.seq: entry for entry in standing.entries if entry.group == group}
        if entries or rank in members:
            found[rank] = entries
    return found


def _numbers(by_rank: Mapping[int, Mapping[int, Entry]]) -> range:
    filled = [entries for entries in by_rank.values() if entries]
    first = max((min(entries) for entries in filled), default=1)
    return range(first, max((max(entries) for entries in filled), default=0) + 1)


def _signature(entry: Entry) -> tuple[str, str]:
    return entry.op, entry.tensors if entry.op in _SIZED else ""


def _differing(there: Mapping[int, Entry]) -> str:
    said: dict[str, list[int]] = {}
    for rank, entry in there.items():
        verb = "has been in" if entry.done else "is in"
        said.setdefault(f"{verb} {entry.text}", []).append(rank)
    (first, ranks), *others = said.items()
    told = [f"{_who(ranks)} {_of_many(first, ranks).replace('is in', 'waits in', 1)}"]
    told[0] = told[0].replace("are in", "wait in", 1)
    return "; ".join(told + [f"{_who(some)} {_of_many(text, some)}" for text, some in others])


def _missing(
    there: Mapping[int, Entry], missing: Sequence[int], standings: Mapping[int, Standing]
) -> str:
    waiting = [rank for rank, entry in there.items() if not entry.done]
    entry = there[waiting[0]]
    verb = "waits" if len(waiting) == 1 else "wait"
    places: dict[str, list[int]] = {}
    for rank in missing:
        places.setdefault(_where(standings[rank]), []).append(rank)
    told = [
        f"{_who(ranks)} {'is' if len(ranks) == 1 else 'are'} {place}, "
        f"{'it has' if len(ranks) == 1 else 'they have'} not come to {entry.name}"
        for place, ranks in places.items()
    ]
    return "; ".join([f"{_who(waiting)} {verb} in {entry.text}", *told])


def _who(ranks: Sequence[int]) -> str:
    return rank_words(ranks)


def _of_many(text: str, ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return text
    return text.replace("is in", "are in", 1).replace("has been in", "have been in", 1)
