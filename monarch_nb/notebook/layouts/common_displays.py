"""Displays that several ranks have shown alike: drawn once, and who shows the same later joins.

Figures come when each rank has computed its own, which may be seconds apart. Rule of the file: a
rank joins a display only when everything it has shown before stands above it; so what each rank
has shown stays in order. Text and applications (widgets) do not come here. No locks: the cell's
output guards it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final

from monarch_nb.core.errors.folding import rank_label
from monarch_nb.notebook.output.mime import Content, is_composable, labelled, plain_text, with_id

MAX_KEPT: Final = 64  # displays of a cell that can be joined; they may be megabytes

Joins = Callable[[int, int], bool]


class CommonDisplay:
    """A display and the ranks that have shown it; `place` is where it stands."""

    def __init__(self, ranks: Iterable[int], total: int, content: Content, place: int) -> None:
        self.ranks = set(ranks)
        self.place = place
        self.is_shown = False
        self._id = uuid.uuid4().hex
        self._total = total
        self._content = content

    def drawn(self) -> list[Content]:
        """What to display; the first names the ranks, and can be changed."""
        first, *rest = labelled(rank_label(self.ranks, self._total), self._content)
        first = with_id(first, self._id)
        return [first, self._content] if rest else [first]  # a picture is not sent again


class CommonDisplays:
    """Those of one cell that can still be joined, by mesh and word (see `messages.Tokens`)."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[CommonDisplay]] = {}
        self._count = 0

    def join(self, mesh: str, word: str, rank: int, joins: Joins) -> CommonDisplay | None:
        """The display that the rank has joined by showing the same; None: it has to be shown.

        `joins(rank, place)` tells whether what the rank has shown is above that place, and if so
        takes note that it has shown something there.
        """
        for one in self._found.get((mesh, word), ()):
            if rank not in one.ranks and joins(rank, one.place):
                one.ranks.add(rank)
                return one
        return None

    def add(self, mesh: str, word: str, one: CommonDisplay) -> None:
        """It is about to be shown, and can be joined."""
        if self._count < MAX_KEPT:
            self._count += 1
            self._found.setdefault((mesh, word), []).append(one)

    def clear(self) -> None:
        self._found.clear()
        self._count = 0


def can_be_common(kind: str, content: Content) -> bool:
    """Whether it is a picture or a page, of no application of the front end's."""
    return kind == "display_data" and not plain_text(content) and is_composable(content["data"])
