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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from monarch_nb.core.folding import rank_runs
from monarch_nb.notebook.words import count, duration, sizes_text

MAX_ROWS = 16
"""A mesh with more ranks is shown with one row for each state."""
MAX_VALUES = 64
MAX_VALUE = 200  # characters

_MARKS = {
    "idle": ("○", "#009E73"),
    "busy": ("●", "#2F8FD6"),
    "running": ("●", "#2F8FD6"),
    "collective": ("◆", "#2F8FD6"),
    "starting": ("◌", "#7a7a7a"),
    "paused": ("‖", "#CC79A7"),
    "silent": ("▲", "#E69F00"),
    "leaving": ("◌", "#7a7a7a"),
    "stopped": ("◌", "#7a7a7a"),
}
_BAD = ("✕", "#D55E00")  # error, exited, unreachable, and whatever is not known here
_HEADINGS = ("rank", "place", "pid", "state", "for", "doing")

Row = tuple[str, str, str, str, str, str]


class StatusView:
    """What `%mesh status` shows: each mesh with the state of its ranks."""

    def __init__(self, meshes: Sequence[Any], current: str | None = None) -> None:
        self._meshes = meshes
        self._current = current

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def text(self) -> str:
        """A table for each mesh."""
        return "\n".join(self._text_of(mesh) for mesh in self._meshes)

    def html(self) -> str:
        """The same, self-contained."""
        return "".join(self._html_of(mesh) for mesh in self._meshes)

    def _text_of(self, mesh: Any) -> str:
        return f"{self._title(mesh)}\n{table_text(_HEADINGS, map(_plain, rows(mesh)))}"

    def _html_of(self, mesh: Any) -> str:
        body = "".join(f"<tr>{''.join(map(_cell, _HEADINGS, row))}</tr>" for row in rows(mesh))
        return f"<div><b>{html.escape(self._title(mesh))}</b>{table_html(_HEADINGS, body)}</div>"

    def _title(self, mesh: Any) -> str:
        current = " (current)" if mesh.name == self._current else ""
        verdicts = Counter(rank.verdict for rank in mesh.ranks)
        counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
        axes = sizes_text(dict(zip(mesh.labels, mesh.sizes, strict=True)))
        return f"{mesh.name}: {count(len(mesh.ranks), 'rank')}, {counts}; {axes}{current}"


def rows(mesh: Any) -> Iterator[Row]:
    """The text of each rank's row, or of each state's, if there are many ranks."""
    if len(mesh.ranks) <= MAX_ROWS:
        yield from (_row([rank], mesh) for rank in mesh.ranks)
        return
    ordered = sorted(mesh.ranks, key=_sameness)
    for _, alike in itertools.groupby(ordered, key=_sameness):
        yield _row(list(alike), mesh)


def _sameness(rank: Any) -> tuple[str, str, str]:
    return rank.verdict, rank.what or "", rank.detail or ""


def _row(ranks: Sequence[Any], mesh: Any) -> Row:
    first = ranks[0]
    alone = len(ranks) == 1
    doing = " ".join(text for text in (first.what, first.detail) if text)
    since = max(rank.since_s for rank in ranks)
    return (
        rank_runs(rank.rank for rank in ranks),
        _place(first.coords, mesh.labels) if alone else count(len(ranks), "rank"),
        str(first.pid or "") if alone else "",
        first.verdict,
        duration(since) if since else "",
        doing,
    )


def _place(coords: Any, labels: Iterable[str]) -> str:
    values = [coords[label] for label in labels] if hasattr(coords, "keys") else coords
    return " ".join(f"{label}={at}" for label, at in zip(labels, values, strict=True))


def _plain(row: Row) -> Row:
    rank, place, pid, state, since, doing = row
    return rank, place, pid, f"{_MARKS.get(state, _BAD)[0]} {state}", since, doing


def _cell(heading: str, text: str) -> str:
    content = html.escape(text)
    if heading == "state":
        mark, colour = _MARKS.get(text, _BAD)
        content = f'<span style="color:{colour}">{mark}</span> {content}'
    return f"<td style='text-align:left'>{content}</td>"


def table_text(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table without colours."""
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
    """A table in the front end's own colours."""
    head = "".join(f"<th style='text-align:left'>{html.escape(one)}</th>" for one in headings)
    return (
        f"<table style='color:inherit'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


# ------------------------------------------------------------------------- meshes and values


def mesh_html(mesh: Any) -> str:
    """For meshes of processes and actors: what `repr` says, in one line."""
    return f"<code>{html.escape(repr(mesh))}</code>"


def values_html(values: Any) -> str:
    """For `ValueMesh`: a row for each rank, equal neighbours together."""
    labels = list(values.sizes)
    shown = itertools.islice(values.items(), MAX_VALUES)
    body = "".join(_value_row(labels, point, value) for point, value in shown)
    more = len(values) - MAX_VALUES
    note = f"<div>... {more} more</div>" if more > 0 else ""
    title = f"ValueMesh {sizes_text(values.sizes)}"
    return f"<div><b>{html.escape(title)}</b>{table_html([*labels, 'value'], body)}{note}</div>"


def _value_row(labels: Sequence[str], point: Any, value: Any) -> str:
    text = _repr(value)
    places = "".join(f"<td style='text-align:left'>{point[label]}</td>" for label in labels)
    value_style = "text-align:left;font-family:ui-monospace,monospace;white-space:pre"
    return f"<tr>{places}<td style='{value_style}'>{html.escape(text)}</td></tr>"


def _repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  a user's class; the other values are still shown
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return f"{text[:MAX_VALUE]}..." if len(text) > MAX_VALUE else text


_FORMATTERS = {
    ("monarch_nb.core.values", "ValueMesh"): values_html,
    ("monarch_nb.actors.proc_mesh", "ProcMesh"): mesh_html,
    ("monarch_nb.actors.host_mesh", "HostMesh"): mesh_html,
    ("monarch_nb.actors.actor_mesh", "ActorMesh"): mesh_html,
}


def register(shell: Any) -> None:
    """Let the shell show our classes; by name, so that nothing is imported for it."""
    formatter = shell.display_formatter.formatters["text/html"]
    for (module, name), show in _FORMATTERS.items():
        formatter.for_type_by_name(module, name, show)


def unregister(shell: Any) -> None:
    """Undo `register`."""
    formatter = shell.display_formatter.formatters["text/html"]
    for key in _FORMATTERS:
        formatter.deferred_printers.pop(key, None)
