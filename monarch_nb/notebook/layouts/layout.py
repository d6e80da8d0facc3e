"""How the output of a cell's ranks is laid out: what may be asked for, and how it is drawn.

Rules of the file: no I/O. HTML stands for itself: no scripts, no style sheets, nothing that
JupyterLab takes away from a notebook that is not trusted (it keeps `details`, tables and most
inline styles, but no `var()` in them, so colours are the front end's own). All text is escaped.
`text/plain` holds every section in order. Memory is bounded, and so is what is sent: while the cell
runs, the last lines of each rank are drawn, when that costs no more than a share of what has come,
or once a second; in the end each section is whole, up to a limit.
"""

from __future__ import annotations

import html
import re
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from monarch_nb.core.errors.folding import rank_label
from monarch_nb.core.text.lines import LineAssembler
from monarch_nb.notebook.output.mime import Content, header_html, label_text, text_content

SECTIONS: Final = ("columns", "tabs", "ranks")
KINDS: Final = ("fold", *SECTIONS)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRE = "margin:0;white-space:pre-wrap;text-align:left"
_CELL = "vertical-align:top;text-align:left;min-width:13em"

LIVE_LINES: Final = 100  # of all ranks together, while the cell runs
MIN_LINES: Final = 5  # of each, then
LIVE_S: Final = 1.0  # new text is drawn after this time, whatever it costs
LIVE_SHARE: Final = 0.5  # of the text that has come; no more is spent on drawing it sooner
MAX_CHARS: Final = 400_000  # of all sections in the end
MIN_CHARS: Final = 4_000  # of one section


@dataclass(frozen=True)
class Layout:
    """What `%%mesh --layout` asks for.

    `only` is the one rank whose output is shown; without `streams` all is shown in the end.
    """

    kind: str = "fold"
    only: int | None = None
    streams: bool = True

    @property
    def has_sections(self) -> bool:
        return self.kind in SECTIONS


FOLD: Final = Layout()


@dataclass(frozen=True)
class Section:
    """The output of one rank: its label, its text, and what stands above it (lines left out)."""

    label: str
    text: str
    note: str = ""


def drawn(kind: str, sections: Iterable[Section], name: str, plain: str | None = None) -> Content:
    """Return the display of sections; `name` is no other's, `plain` replaces its plain text."""
    shown = list(sections)
    if kind == "tabs":
        as_html = _tabs(shown, name)
    else:
        as_html = _columns(shown) if kind == "columns" else _below(shown)
    return text_content(_plain(shown) if plain is None else plain, as_html)


def _plain(sections: list[Section]) -> str:
    return "\n".join(_labelled(one) for one in sections if one.text)


def _labelled(one: Section) -> str:
    text = f"{one.note}\n{one.text}" if one.note else one.text
    return label_text(one.label, text) if one.label else text


def _below(sections: list[Section]) -> str:
    return "".join(f"{header_html(one.label)}{_body(one)}" for one in sections if one.text)


def _columns(sections: list[Section]) -> str:
    heads = "".join(f'<th style="{_CELL}">{html.escape(one.label)}</th>' for one in sections)
    cells = "".join(f'<td style="{_CELL}">{_body(one)}</td>' for one in sections)
    return (
        '<div style="overflow-x:auto"><table style="margin:0">'
        f"<thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table></div>"
    )


def _tabs(sections: list[Section], name: str) -> str:
    # Of `details` with one name a browser keeps one open; without the name, those clicked
    parts = []
    for place, one in enumerate(sections):
        last = html.escape(_without_colours(one.text).rstrip("\n").rpartition("\n")[2][:80])
        summary = f'{html.escape(one.label)} <span style="opacity:0.7">{last}</span>'
        parts.append(
            f'<details name="{name}"{"" if place else " open"}><summary>{summary}</summary>'
            f"{_body(one)}</details>"
        )
    return "".join(parts)


def _body(section: Section) -> str:
    note = header_html(section.note) if section.note else ""
    text = html.escape(_without_colours(section.text), quote=False)
    return f'{note}<pre style="{_PRE}">{text}</pre>'


def _without_colours(text: str) -> str:
    return _ANSI.sub("", text)


class Sections:
    """The sections of the cell with this `number`, on ranks of a mesh with `total` ranks."""

    def __init__(self, kind: str, ranks: Iterable[int], total: int, number: int) -> None:
        self._kind = kind
        self._number = number
        self._name = uuid.uuid4().hex
        ranks = list(ranks)
        limit = max(MAX_CHARS // max(len(ranks), 1), MIN_CHARS)
        self._live_lines = max(LIVE_LINES // max(len(ranks), 1), MIN_LINES)
        self._spoken = {rank: _Spoken(rank_label([rank], total), limit) for rank in ranks}
        self._come = 0  # characters of ranks
        self._spent = 0  # characters that were drawn
        self._size = 0  # of the last drawing
        self._drawn_at = float("-inf")
        self._new_since: float | None = None

    def add(self, rank: int, stream: str, text: str, now: float) -> bool:
        """Take text of a rank; False if it has no section."""
        spoken = self._spoken.get(rank)
        if spoken is None:
            return False
        spoken.add(stream, text)
        self._come += len(text)
        self._new_since = self._new_since or now
        return True

    def conclude(self, rank: int, result: str) -> bool:
        """Return the result of a rank, below what it has said; False if it has no section."""
        if rank in self._spoken:
            self._spoken[rank].end()
        return self.add(rank, "stdout", result, 0.0)

    @property
    def deadline(self) -> float | None:
        """At once, if it is worth it."""
        if self._new_since is None:
            return None
        if self._spent + self._size <= self._come * LIVE_SHARE:
            return self._new_since
        return self._drawn_at + LIVE_S

    def draw(self, now: float) -> Content:
        """Return the last lines of each."""
        sections = [one.section(self._live_lines, "") for one in self._spoken.values()]
        last = [Section(one.label, one.text.rpartition("\n")[2]) for one in sections if one.text]
        plain = "\n".join(f"{one.label} {one.text[:80]}".strip() for one in last)
        content = drawn(self._kind, sections, self._name, plain)
        self._size = sum(map(len, content["data"].values()))
        self._spent += self._size
        self._drawn_at, self._new_since = now, None
        return content

    def final(self) -> Content | None:
        """Return all of each; None if there is nothing."""
        if not self._come:
            return None
        for one in self._spoken.values():
            one.end()
        where = {rank: f"%mesh logs {rank} --cell {self._number}" for rank in self._spoken}
        sections = [one.section(None, where[rank]) for rank, one in self._spoken.items()]
        return drawn(self._kind, sections, self._name)


class _Spoken:
    """The lines that one rank printed; if there are too many, the last of them."""

    def __init__(self, label: str, limit: int) -> None:
        self._label = label
        self._limit = limit
        self._assemblers: dict[str, LineAssembler] = {}
        self._lines: deque[str] = deque()
        self._chars = 0
        self._dropped = 0

    def add(self, stream: str, text: str) -> None:
        for line in self._assemblers.setdefault(stream, LineAssembler()).feed(text):
            self._append(line)

    def end(self) -> None:
        # Lines that have not ended, end
        for assembler in self._assemblers.values():
            if assembler:
                self._append(assembler.take())

    def section(self, last: int | None, where: str) -> Section:
        # The last lines, or all that is kept; `where` names the command that shows the rest
        lines = (
            list(self._lines) if last is None else list(islice(reversed(self._lines), last))[::-1]
        )
        lines += [one.pending for one in self._assemblers.values() if one]
        hidden = self._dropped + (len(self._lines) - last if last is not None else 0)
        note = f"... {hidden} lines before" if hidden > 0 else ""
        if note and where:
            note += f", all of them: {where}"
        return Section(self._label, "\n".join(lines), note)

    def _append(self, line: str) -> None:
        self._lines.append(line)
        self._chars += len(line) + 1
        while self._chars > self._limit and len(self._lines) > 1:
            self._chars -= len(self._lines.popleft()) + 1
            self._dropped += 1
