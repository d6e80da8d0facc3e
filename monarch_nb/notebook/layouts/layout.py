"""How the output of a cell's ranks is laid out: what may be asked for, and how it is drawn.

Rules of the file: no I/O. HTML of ours stands for itself: no scripts, no style sheets, nothing that
JupyterLab takes away from a notebook that is not trusted (it keeps `details`, tables and most
inline styles, but no `var()` in them, so colours are the front end's own). All text is escaped;
what a rank shows as a page is the user's own, as in any output. `text/plain` holds every section in
order.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from monarch_nb.notebook.output.mime import Content, header_html, label_text, text_content

SECTIONS: Final = ("columns", "tabs", "ranks")
KINDS: Final = ("fold", *SECTIONS)

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRE = "margin:0;white-space:pre-wrap;text-align:left"
_CELL = "vertical-align:top;text-align:left;min-width:13em"


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


class Shown(NamedTuple):
    """A figure or a table: its page, and what stands for it in plain text."""

    page: str
    text: str


Item = str | Shown


@dataclass(frozen=True)
class Section:
    """The output of one rank: its label, what it said and showed, and what is told above it."""

    label: str
    items: Sequence[Item]
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.items and not self.note

    @property
    def text(self) -> str:
        return "\n".join(one if isinstance(one, str) else one.text for one in self.items)


def drawn(kind: str, sections: Iterable[Section], name: str, plain: str | None = None) -> Content:
    """Return the display of sections; `name` is no other's, `plain` replaces its plain text."""
    shown = list(sections)
    if kind == "tabs":
        as_html = _tabs(shown, name)
    else:
        as_html = _columns(shown) if kind == "columns" else _below(shown)
    return text_content(_plain(shown) if plain is None else plain, as_html)


def _plain(sections: list[Section]) -> str:
    return "\n".join(_labelled(one) for one in sections if not one.is_empty)


def _labelled(one: Section) -> str:
    text = "\n".join(filter(None, [one.note, one.text]))
    return label_text(one.label, text) if one.label else text


def _below(sections: list[Section]) -> str:
    return "".join(f"{header_html(one.label)}{_body(one)}" for one in sections if not one.is_empty)


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
    return note + "".join(map(_item, section.items))


def _item(item: Item) -> str:
    if isinstance(item, Shown):
        return f"<div>{item.page}</div>"
    return f'<pre style="{_PRE}">{html.escape(_without_colours(item), quote=False)}</pre>'


def _without_colours(text: str) -> str:
    return _ANSI.sub("", text)
