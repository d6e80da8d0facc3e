"""What `%mesh vars` shows: the variables of ranks, those that are alike in one row."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch_nb.core.errors.folding import listed_ranks, rank_words
from monarch_nb.core.text import variable_rows
from monarch_nb.core.text.columns import columns
from monarch_nb.core.text.units import count
from monarch_nb.notebook.display.display import table_html


@dataclass(frozen=True)
class VariablesView:
    """Variables of a mesh, of all that was `told` of it: docs/terminal.md has the fields."""

    mesh: str
    variables: Sequence[Mapping[str, Any]]
    told: Mapping[str, Any]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def text(self) -> str:
        rows = self._rows()
        table = columns([variable_rows.HEADINGS, *rows]) if rows else ()
        return "\n".join([self._title(), *table, *self._notes()])

    def html(self) -> str:
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self._rows())
        table = table_html(variable_rows.HEADINGS, body) if body else ""
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self._notes())
        return f"<div><b>{html.escape(self._title())}</b>{table}{notes}</div>"

    def _title(self) -> str:
        number = count(len(self.variables), "variable")
        differing = sum(bool(each["differs"]) for each in self.variables)
        return f"{self.mesh}: {number}" + (f", {differing} differ" if differing else "")

    def _rows(self) -> list[tuple[str, ...]]:
        return [row for each in self.variables for row in variable_rows.rows(each)]

    def _notes(self) -> list[str]:
        notes = []
        if self.told["left_out"]:
            notes.append(f"and {count(self.told['left_out'], 'older variable')}")
        if silent := self.told["no_answer"]:
            notes.append(f"{rank_words(listed_ranks(silent))}: no answer; %mesh status shows why")
        return notes


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{html.escape(text)}</td>"
