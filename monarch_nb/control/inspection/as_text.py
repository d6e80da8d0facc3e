"""Answers of kernels as text for people: in colours in a terminal, plain where it is piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monarch_nb.control.inspection.kernels import Told
from monarch_nb.core.errors.folding import listed_ranks, rank_runs, rank_words
from monarch_nb.core.text import variable_rows
from monarch_nb.core.text.columns import columns
from monarch_nb.core.text.units import count, duration, sizes_text

NO_KERNEL: Final = "no kernel of yours has started meshes on this machine"
NO_MESH: Final = "no mesh is up"
MAX_FAILURES: Final = 3
_PLAIN_WIDTH: Final = 10_000  # a line stays a line, for grep
_COLOURS: Final = {
    "busy": "blue", "collective": "blue", "idle": "green", "starting": "bright_black",
    "leaving": "bright_black", "paused": "magenta", "silent": "yellow",
}  # fmt: skip
_BAD: Final = "red"
"""Of states that are not among these."""

_HEADINGS: Final = ("ranks", "state", "for", "doing")
_EACH: Final = ("rank", "place", "host", "pid", "state", "for", "calls", "failed", "doing")
_STOPS: Final = ("mesh", "rank", "kind", "at", "runs", "for")


class Page:
    """Writes to standard output; colours only where that is a terminal."""

    def __init__(self) -> None:
        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        self._console = Console(highlight=False, markup=False, emoji=False, width=width)

    def line(self, text: str, style: str = "") -> None:
        """Write a line; a long one is left to the terminal."""
        self._console.print(Text(text, style), soft_wrap=True)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        if not self._console.is_terminal:
            for each in columns([headings, *rows]):
                self.line(each)
            return
        table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
        for heading in headings:
            table.add_column(heading, no_wrap=heading != headings[-1])
        for row in rows:
            table.add_row(*map(_coloured, headings, row))
        self._console.print(table)


def _coloured(heading: str, text: str) -> Text:
    return Text(text, _COLOURS.get(text, _BAD) if heading == "state" else "")


def show(command: str, told: Sequence[Told]) -> None:
    """Show what kernels have answered to a command."""
    _SHOWN[command](Page(), told)


def _status(page: Page, told: Sequence[Told]) -> None:
    if not told:
        page.line(NO_KERNEL)
    for number, each in enumerate(told):
        if number:
            page.line("")
        if each.error is not None:
            page.line(f"{each.error} ({each.name})", _BAD)
            continue
        page.line(f"{each.owner.pid}  {each.name}", "bold")
        meshes = (each.answer or {})["meshes"]
        for mesh in meshes:
            _mesh(page, mesh)
        if not meshes:
            page.line(NO_MESH)


def _mesh(page: Page, mesh: Mapping[str, Any]) -> None:
    states = ", ".join(f"{number} {state}" for state, number in mesh["states"].items())
    axes, hosts = sizes_text(mesh["axes"]), ", ".join(mesh["hosts"])
    page.line(f"{mesh['name']}: {count(mesh['size'], 'rank')}, {states}; {axes} on {hosts}")
    if "ranks" in mesh:
        page.table(_EACH, map(_row_of_rank, mesh["ranks"]))
    else:
        page.table(_HEADINGS, map(_row_of_group, mesh["groups"]))
    for failure in mesh["failures"][:MAX_FAILURES]:
        ranks = rank_words(listed_ranks(failure["ranks"]))
        in_what = f" in {failure['what']}" if failure["what"] else ""
        ago = duration(failure["ago_s"])
        page.line(f"failed {ago} ago{in_what}, {ranks}: {failure['error']}", _BAD)
    if (more := len(mesh["failures"]) - MAX_FAILURES) > 0:
        page.line(f"and {more} earlier; --json has them", _BAD)


def _row_of_group(group: Mapping[str, Any]) -> tuple[str, ...]:
    return (rank_runs(listed_ranks(group["ranks"])), group["state"], _for(group), _doing(group))


def _row_of_rank(rank: Mapping[str, Any]) -> tuple[str, ...]:
    place = " ".join(f"{label}={at}" for label, at in rank["coords"].items())
    counts = str(rank["calls"]), str(rank["failed"])
    who = str(rank["rank"]), place, rank["host"], str(rank["pid"] or "")
    return (*who, rank["state"], _for(rank), *counts, _doing(rank))


def _for(told: Mapping[str, Any]) -> str:
    return duration(told["for_s"]) if told["for_s"] else ""


def _doing(told: Mapping[str, Any]) -> str:
    return " ".join(text for text in (told["what"], told["detail"]) if text)


def _stacks(page: Page, told: Sequence[Told]) -> None:
    # the ranks stand in front of the first call that they share
    for mesh in _meshes(page, told):
        for line in columns(list(_rows_of(mesh["calls"]))) if mesh["calls"] else ():
            page.line(line)
        if mesh["no_answer"]:
            ranks = rank_words(listed_ranks(mesh["no_answer"]))
            page.line(f"{ranks}: no answer; monarch-nb status shows why", _BAD)


def _meshes(page: Page, told: Sequence[Told]) -> Iterator[Mapping[str, Any]]:
    found = [mesh for each in told for mesh in (each.answer or {})["meshes"]]
    for mesh in found:
        if len(found) > 1:
            page.line(f"{mesh['name']}:", "bold")
        yield mesh
    if not found:
        page.line(NO_MESH)


def _rows_of(calls: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    before = None
    for call in calls:
        ends = "idle" in call
        who = call["ranks"], call["depth"]
        label = "" if who == before and not ends else rank_words(listed_ranks(call["ranks"]))
        before = who
        yield label, "  " * call["depth"] + _call(call)


def _call(call: Mapping[str, Any]) -> str:
    if "idle" in call:
        return "idle" if call["idle"] else "calls nothing from here"
    if "thread" in call:
        return f"{call['thread']}:"
    source = f": {call['source']}" if call["source"] else ""
    return f"{call['place']}{source}"


def _variables(page: Page, told: Sequence[Told]) -> None:
    for mesh in _meshes(page, told):
        rows = [row for each in mesh["variables"] for row in variable_rows.rows(each)]
        if rows:
            page.table(variable_rows.HEADINGS, rows)
        elif not mesh["no_answer"]:
            page.line("no cell has set a variable yet")
        if mesh["left_out"]:
            page.line(f"and {count(mesh['left_out'], 'older variable')}")
        if mesh["no_answer"]:
            ranks = rank_words(listed_ranks(mesh["no_answer"]))
            page.line(f"{ranks}: no answer; monarch-nb status shows why", _BAD)


def _stops(page: Page, told: Sequence[Told]) -> None:
    any_stop = False
    for each in told:
        if each.error is not None:
            page.line(f"{each.error} ({each.name})", _BAD)
        elif found := (each.answer or {})["stops"]:
            any_stop = True
            page.line(f"{each.owner.pid}  {each.name}", "bold")
            page.table(_STOPS, map(_row_of_stop, found))
            page.line(f"to debug these, type: monarch-nb debug --kernel {each.owner.pid}")
    if not any_stop:
        page.line("no rank is stopped in a debugger")


def _row_of_stop(stop: Mapping[str, Any]) -> tuple[str, ...]:
    who = stop["mesh"], str(stop["rank"]), stop["kind"]
    return (*who, stop["place"], stop["what"], duration(stop["for_s"]))


_SHOWN: Final[Mapping[str, Callable[[Page, Sequence[Told]], None]]] = {
    "status": _status, "stacks": _stacks, "vars": _variables, "debug": _stops,
}  # fmt: skip
