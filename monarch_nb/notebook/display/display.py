"""How a mesh, its status and its values look in a notebook: plain text always, HTML beside it.

Rules of the file: a state is told by a word and a shape, colour comes on top (Okabe and Ito's
palette, legible on light and dark); whatever a rank or a user could have written is escaped; many
ranks in the same state are one row.
"""

from __future__ import annotations

import html
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.formatters import BaseFormatter
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.control.api import HOST_MESH, RANK_MESHES
from monarch_nb.core.errors.folding import rank_runs
from monarch_nb.core.text.units import count, duration, sizes_text
from monarch_nb.notebook.display.values import values_html, values_text
from monarch_nb.notebook.view.browser.showing import Showing
from monarch_nb.notebook.view.picture.marks import mark_of

if TYPE_CHECKING:
    from IPython.lib.pretty import RepresentationPrinter

    from monarch_nb.control.api import MeshStatus, RankStatus
    from monarch_nb.core.shape.values import ValueMesh

MAX_ROWS = 16
"""A mesh with more ranks is shown with one row for each state."""

_HEADINGS = ("rank", "place", "pid", "state", "for", "doing")

Row = tuple[str, str, str, str, str, str]


@dataclass(frozen=True)
class StatusView:
    """What `%mesh status` shows: each mesh with the state of its ranks `at` the snapshot's time."""

    meshes: Sequence[MeshStatus]
    at: float
    current: str | None = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def text(self) -> str:
        return "\n".join(self._text_of(mesh) for mesh in self.meshes)

    def html(self) -> str:
        return "".join(self._html_of(mesh) for mesh in self.meshes)

    def _text_of(self, mesh: MeshStatus) -> str:
        return f"{self._title(mesh)}\n{table_text(_HEADINGS, map(_plain, rows(mesh, self.at)))}"

    def _html_of(self, mesh: MeshStatus) -> str:
        lines = rows(mesh, self.at)
        body = "".join(f"<tr>{''.join(map(_cell, _HEADINGS, line))}</tr>" for line in lines)
        return f"<div><b>{html.escape(self._title(mesh))}</b>{table_html(_HEADINGS, body)}</div>"

    def _title(self, mesh: MeshStatus) -> str:
        current = " (current)" if mesh.name == self.current else ""
        states = Counter(rank.state for rank in mesh.ranks)
        counts = ", ".join(f"{number} {state}" for state, number in states.items())
        axes = sizes_text(dict(zip(mesh.labels, mesh.sizes, strict=True)))
        return f"{mesh.name}: {count(len(mesh.ranks), 'rank')}, {counts}; {axes}{current}"


def rows(mesh: MeshStatus, at: float) -> Iterator[Row]:
    """Return the text of each rank's row, or of each state's, if there are many ranks."""
    if len(mesh.ranks) <= MAX_ROWS:
        yield from (_row([rank], mesh, at) for rank in mesh.ranks)
        return
    ordered = sorted(mesh.ranks, key=_sameness)
    for _, alike in itertools.groupby(ordered, key=_sameness):
        yield _row(list(alike), mesh, at)


def _sameness(rank: RankStatus) -> tuple[str, str, str]:
    return rank.state, rank.what or "", rank.detail or ""


def _row(ranks: Sequence[RankStatus], mesh: MeshStatus, at: float) -> Row:
    first = ranks[0]
    alone = len(ranks) == 1
    doing = " ".join(text for text in (first.what, first.detail) if text)
    since = max(rank.age_s(at) for rank in ranks)
    return (
        rank_runs(rank.rank for rank in ranks),
        _place(first.coords, mesh.labels) if alone else count(len(ranks), "rank"),
        str(first.pid or "") if alone else "",
        first.state,
        duration(since) if since else "",
        doing,
    )


def _place(coords: Any, labels: Iterable[str]) -> str:
    values = [coords[label] for label in labels] if hasattr(coords, "keys") else coords
    return " ".join(f"{label}={at}" for label, at in zip(labels, values, strict=True))


def _plain(row: Row) -> Row:
    rank, place, pid, state, since, doing = row
    return rank, place, pid, f"{mark_of(state).sign} {state}", since, doing


def _cell(heading: str, text: str) -> str:
    content = html.escape(text)
    if heading == "state":
        mark = mark_of(text)
        content = f'<span style="color:{mark.colour}">{mark.sign}</span> {content}'
    return f"<td style='text-align:left'>{content}</td>"


def table_text(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    from rich.box import SIMPLE  # 0.1 s of imports
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=heading != headings[-1])
    for line in lines:
        table.add_row(*line)
    out = io.StringIO()
    console = Console(file=out, width=110, color_system=None, markup=False, force_jupyter=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def table_html(headings: Iterable[str], body: str) -> str:
    """Return a table in the front end's own colours."""
    head = "".join(f"<th style='text-align:left'>{html.escape(one)}</th>" for one in headings)
    return (
        f"<table style='color:inherit'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def mesh_html(mesh: object) -> str:
    """Return what `repr` says, in one line; for meshes of hosts."""
    return f"<code>{html.escape(repr(mesh))}</code>"


def _values_plain(values: ValueMesh[Any], printer: RepresentationPrinter, cycle: bool) -> None:  # noqa: ARG001  IPython's
    printer.text(values_text(values))


_VALUES = ("monarch_nb.core.shape.values", "ValueMesh")


def register(shell: InteractiveShell, showing: Showing) -> Callable[[], None]:
    """Let the shell show our classes, by name, so that nothing is imported; return what ends it."""
    display = shell.display_formatter
    assert display is not None  # IPython makes it with the shell
    page = display.formatters["text/html"]
    shown: list[tuple[BaseFormatter, tuple[str, str], Callable[..., object]]] = [
        (display.formatters["text/plain"], _VALUES, _values_plain),
        (page, _VALUES, values_html),
        (page, HOST_MESH, mesh_html),
        *((display.mimebundle_formatter, each, showing.bundle) for each in RANK_MESHES),
    ]
    for formatter, name, show in shown:
        formatter.for_type_by_name(*name, show)

    def undo() -> None:
        for formatter, name, _ in shown:
            formatter.pop(".".join(name), None)

    return undo
