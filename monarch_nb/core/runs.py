"""Runs of a program on a mesh: when one begins, and what their curves are as rows of a table.

Rules of the file: a run begins where the program says so, or where its steps start again. Steps
that go back by less than half of the run are a resume from a checkpoint, and belong to it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from monarch_nb.core.curves import Curve


class RunKey(NamedTuple):
    """What a rank calls a run by, so that all ranks of a cell mean the same one: the cell in which
    it began, its name (empty: it has none), and how many of that name began there."""

    cell: int
    name: str
    number: int


NO_RUN: Final = RunKey(0, "", 0)


def starts_again(step: int, first: int, last: int, *, is_other_cell: bool) -> bool:
    """Tell whether a step begins a new run after one with the steps `first` to `last`.

    Example:
        >>> starts_again(0, 0, 1000, is_other_cell=False)
        True
        >>> starts_again(900, 0, 1000, is_other_cell=True)
        False
    """
    if is_other_cell and step <= first:
        return step <= last
    return step < last and 2 * (step - first) < last - first


class Run(Protocol):
    """A run as it is kept. `number` counts from 1."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def curves(self) -> Mapping[str, Curve]: ...


def title(run: Run) -> str:
    """Return its name, or `run 3` where it has none."""
    return run.name or f"run {run.number}"


class Row(NamedTuple):
    """A value that a rank has logged. `value`: None where it was no finite number."""

    run: str
    run_number: int
    name: str
    rank: int
    step: int
    value: float | None


def rows(
    runs: Iterable[Run], *, name: str | None = None, ranks: Iterable[int] | None = None
) -> Iterator[Row]:
    """Return all points that are kept, or those of one name, of these ranks."""
    wanted = None if ranks is None else frozenset(ranks)
    for run in runs:
        for each, curve in run.curves.items():
            if name is not None and each != name:
                continue
            for rank in curve.ranks:
                if wanted is None or rank in wanted:
                    for step, value in curve.of(rank):
                        yield Row(title(run), run.number, each, rank, step, value)


def as_csv(table: Sequence[Row]) -> str:
    """Return them as CSV with a line of names; an empty field where there is no value.

    A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in table:
        writer.writerow(row._replace(run=_harmless(row.run), name=_harmless(row.name)))
    return file.getvalue()


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
