"""How the output of a cell's ranks is laid out: what may be asked for, and how it is drawn.

Rules of the file: pure, text in and text out. HTML stands for itself: no scripts, no style sheets,
nothing that JupyterLab takes away from a notebook that is not trusted (it keeps `details`, tables
and most inline styles, but no `var()` in them, so colours are the front end's own). All text is
escaped. `text/plain` holds every section in order.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True)
class Section:
    """What one rank has said: its label, its text, and what stands above it (lines left out)."""

    label: str
    text: str
    note: str = ""


def drawn(kind: str, sections: Iterable[Section], name: str, plain: str | None = None) -> Content:
    """The display of these sections. `name` is no other display's; `plain` stands for its plain
    text, if that is another."""
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
