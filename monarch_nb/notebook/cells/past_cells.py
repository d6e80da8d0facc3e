"""Cells that ranks have run, for processes that came later in their place: which of them to run
there, and what to type. Words and choices only.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from monarch_nb.core.elastic.replay import ALL, Names, names_of, only_defines
from monarch_nb.core.errors.folding import rank_list, rank_words
from monarch_nb.notebook.cells.wording import cell_number
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.tracebacks import NAMES_OF_RANKS

if TYPE_CHECKING:
    from monarch_nb.control.api import PastCell


class Chosen(NamedTuple):
    """Cells to run, on the ranks that lack each, in order; and those of the same that do work."""

    run: list[PastCell]
    left_out: list[PastCell]


def choose(
    past: Sequence[PastCell], numbers: Collection[int] | None, ranks: Sequence[int] | None
) -> Chosen:
    """Choose cells by their numbers, else those that only define something, of what cells define,
    for these ranks, or for all that lack them. Raises `MagicError` where there are none."""
    known = [each for each in past if cell_number(each.cell.what)]
    if numbers is not None:
        return Chosen(_named(known, numbers, ranks), [])
    lacking = list(_lacking(known, ranks))
    if not lacking:
        who = "no rank lacks" if ranks is None else f"nothing is lacking on {rank_words(ranks)} of"
        raise MagicError(
            f"{who} what it has run before. Type: %mesh replay 3 --ranks 2, which runs cell In[3] "
            "there in any case"
        )
    run = _defining(lacking, known)
    return Chosen(run, [each for each in lacking if each not in run])


def _lacking(past: Sequence[PastCell], ranks: Sequence[int] | None) -> Sequence[PastCell]:
    wanted = (
        each._replace(lacking=tuple(r for r in each.lacking if ranks is None or r in ranks))
        for each in past
    )
    return [each for each in wanted if each.lacking]


def _defining(lacking: Sequence[PastCell], known: Sequence[PastCell]) -> list[PastCell]:
    # without those that would fail, as they use what was sent to the ranks, or computed in a loop
    is_lacking = {each.cell for each in lacking}
    there = {name for each in known if each.cell not in is_lacking for name in _names(each).defines}
    run = [each for each in lacking if only_defines(each.cell.code)]
    while True:
        defined = {name for each in run for name in _names(each).defines}
        can_run = [
            each
            for each in run
            if ALL in defined or _names(each).needs_now <= defined | there | NAMES_OF_RANKS
        ]
        if len(can_run) == len(run):
            return run
        run = can_run


def _names(past: PastCell) -> Names:
    return names_of(past.cell.code)


def _named(
    past: Sequence[PastCell], numbers: Collection[int], ranks: Sequence[int] | None
) -> list[PastCell]:
    named = [each for each in past if cell_number(each.cell.what) in numbers]
    if not named:
        there = f"In[{number_words(past, past)}]" if past else "none"
        raise MagicError(f"no such cell has run on the mesh. Those that have: {there}")
    if ranks is not None:
        return [each._replace(lacking=tuple(ranks)) for each in named]
    if not all(each.lacking for each in named):
        raise MagicError(
            "its ranks have run it, and are the same processes still. "
            "--ranks says on which it is to run again"
        )
    return named


class Offer(NamedTuple):
    """What to type for ranks that were started again: it runs these cells (`3-4`) on those that
    lack them."""

    typed: str
    cells: str
    ranks: tuple[int, ...]


def offer(past: Sequence[PastCell], ranks: Sequence[int] | None, name: str | None) -> Offer | None:
    """Return what to type for ranks that were started again, or for all such, of the mesh `name`
    if it is not the current one; None where they lack nothing that a cell has defined."""
    known = [each for each in past if cell_number(each.cell.what)]
    found = _defining(_lacking(known, ranks), known)
    if not found:
        return None
    lacking = tuple(sorted({rank for each in found for rank in each.lacking}))
    where = "" if name is None else f" --name {shlex.quote(name)}"
    are_same = all(set(each.lacking) == set(ranks or lacking) for each in found)
    who = f" --ranks {rank_list(lacking)}" if are_same else ""
    cells = number_words(found, known)
    return Offer(f"%mesh replay {cells}{who}{where}", cells, lacking)


def report(chosen: Chosen, past: Sequence[PastCell]) -> str:
    """Say what has run, and what to type for what has not."""
    said = "no cell ran again"
    if chosen.run:
        ranks = sorted({rank for each in chosen.run for rank in each.lacking})
        said = f"In[{number_words(chosen.run, past)}] ran again on {rank_words(ranks)}"
    if not chosen.left_out:
        return said
    numbers = number_words(chosen.left_out, past)
    return (
        f"{said}; left out: In[{numbers}], with work, process groups, or names that no such cell "
        f"defines. %mesh replay {numbers} runs that too"
    )


def number_words(chosen: Sequence[PastCell], known: Sequence[PastCell]) -> str:
    """Return the numbers of cells as they are typed; between those of a run no other one is.

    Example: `2-4,7`, where the cells 5 and 6 have run too, and are not chosen.
    """
    wanted = {cell_number(each.cell.what) for each in chosen}
    numbers = sorted({number for each in known if (number := cell_number(each.cell.what))})
    runs = []
    for is_chosen, run in itertools.groupby(numbers, wanted.__contains__):
        first, *_, last = [*run] * 2
        if is_chosen:
            runs.append(f"{first}" if first == last else f"{first}-{last}")
    return ",".join(runs)
