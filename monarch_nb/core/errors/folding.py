"""What ranks have in common is said once: equal outputs, equal errors, and the labels of ranks.

Pure functions of what has arrived. Text is folded in `core/text/`, where time matters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from monarch_nb.core.errors.records import ErrorRecord, Label, Lookup, clip

MAX_RUNS: Final = 12  # of ranks in a label
MAX_MESSAGES: Final = 16  # of differing messages that are listed
MAX_MESSAGE: Final = 300
_NOT_COMING: Final = "will not come"


def rank_runs(ranks: Iterable[int]) -> str:
    """Return `0-3`, `0,2-3`; scattered ranks in large numbers are cut short and counted."""
    return _runs(tuple(sorted(set(ranks))))


def rank_list(ranks: Iterable[int]) -> str:
    """Return `0,2-3`, however many: to be typed again."""
    return ",".join(_pairs(tuple(sorted(set(ranks)))))


def listed_ranks(text: str) -> list[int]:
    runs = [run.partition("-") for run in text.split(",") if run]
    return [rank for a, _, b in runs for rank in range(int(a), int(b or a) + 1)]


def rank_label(ranks: Iterable[int], total: int = 0) -> str:
    """Return `[0-3]`, `[0,2-3]`; empty on a mesh of one rank (`total` is the size of the mesh)."""
    return "" if total == 1 else f"[{rank_runs(ranks)}]"


def rank_words(ranks: Iterable[int]) -> str:
    """Return `rank 2`, `ranks 0-3`."""
    runs = rank_runs(ranks)
    return f"rank {runs}" if runs.isdigit() else f"ranks {runs}"


@functools.lru_cache(maxsize=1024)  # the same few sets of ranks come back with every line
def _runs(ranks: tuple[int, ...]) -> str:
    texts = _pairs(ranks)
    if len(texts) > MAX_RUNS:
        return f"{','.join(texts[:MAX_RUNS])},... {len(ranks)} in all"
    return ",".join(texts)


def _pairs(ranks: tuple[int, ...]) -> list[str]:
    present = set(ranks)
    starts = [rank for rank in ranks if rank - 1 not in present]
    ends = [rank for rank in ranks if rank + 1 not in present]
    return [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class OutputGroup:
    """Ranks whose outputs are equal; `label` is empty on a mesh of one rank."""

    ranks: tuple[int, ...]
    label: str


def fold_outputs(signatures: Mapping[int, Hashable], total: int = 0) -> list[OutputGroup]:
    """Group ranks by what stands for their output, in the order of each group's first rank."""
    groups: dict[Hashable, list[int]] = {}
    for rank in sorted(signatures):
        groups.setdefault(signatures[rank], []).append(rank)
    return [OutputGroup(tuple(ranks), rank_label(ranks, total)) for ranks in groups.values()]


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Ranks whose errors arose in the same way.

    `record` is that of the first of them; `messages` holds each different message with its ranks.
    """

    ranks: tuple[int, ...]
    record: ErrorRecord
    messages: tuple[tuple[tuple[int, ...], str], ...]

    @property
    def headline(self) -> str:
        """`ranks 0-3: ValueError: bad value`, or how many messages there are where they differ."""
        if len(self.messages) == 1:
            return f"{rank_words(self.ranks)}: {clip(self.record.headline, MAX_MESSAGE)}"
        name = dataclasses.replace(self.record, evalue="").headline
        return f"{rank_words(self.ranks)}: {name}, {len(self.messages)} different messages"

    def format(
        self,
        lookup: Lookup | None = None,
        label: Label | None = None,
        total: int = 0,
        *,
        in_full: bool = False,
    ) -> list[str]:
        """Return headline, traceback once, messages that differ; on one rank, the traceback.

        Many or long messages are cut short, unless wanted `in_full`.
        """
        traceback = self.record.format(lookup, label)
        if total == 1:
            return traceback
        return [self.headline, *traceback, *self._differing(in_full)]

    def _differing(self, in_full: bool) -> Iterator[str]:
        if len(self.messages) == 1:
            return
        yield "The messages differ:"
        shown = self.messages if in_full else self.messages[:MAX_MESSAGES]
        for ranks, message in shown:
            first, *more = (message if in_full else clip(message, MAX_MESSAGE)).split("\n")
            yield f"  {rank_words(ranks)}: {first}"
            yield from (f"    {line}" for line in more)
        if len(self.messages) > len(shown):
            yield f"  ... {len(self.messages) - len(shown)} more messages"


def fold_errors(records: Mapping[int, ErrorRecord]) -> list[ErrorGroup]:
    """Group ranks by how their errors arose; messages may differ within a group.

    Ranks that only waited for one that had failed come last.
    """
    folded = fold_outputs({rank: record.signature() for rank, record in records.items()})
    groups = [_error_group(group.ranks, records) for group in folded]
    return sorted(groups, key=lambda group: _only_waited(group.record))


def not_coming(ranks: Sequence[int]) -> str:
    """Say why ranks that wait for these are freed.

    Example:
        >>> not_coming([2])
        'rank 2 failed, it will not come'
    """
    return f"{rank_words(ranks)} failed, {'it' if len(ranks) == 1 else 'they'} {_NOT_COMING}"


def _only_waited(record: ErrorRecord) -> bool:
    return any(text.endswith(_NOT_COMING) for text in (record.evalue, *record.notes))


def format_errors(
    groups: Iterable[ErrorGroup],
    lookup: Lookup | None = None,
    label: Label | None = None,
    total: int = 0,
) -> list[str]:
    """Return all groups as lines without newlines, an empty line between them."""
    lines: list[str] = []
    for group in groups:
        lines += [""] if lines else []
        lines += group.format(lookup, label, total)
    return lines


def _error_group(ranks: tuple[int, ...], records: Mapping[int, ErrorRecord]) -> ErrorGroup:
    same = fold_outputs({rank: records[rank].evalue for rank in ranks})
    messages = tuple((group.ranks, records[group.ranks[0]].evalue) for group in same)
    return ErrorGroup(ranks, records[ranks[0]], messages)
