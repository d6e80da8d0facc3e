"""Who follows the log, and which lines each channel is to be sent next. Pure.

A line is sent once to a channel, whoever of its clients wants it; each drops what it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.notebook.view.browser.protocol import Follow

if TYPE_CHECKING:
    from monarch_nb.control.output.tail import Line

MAX_LINES: Final = 500  # of one message; of more the last are sent


class LogSubscribers:
    """Who of one channel follows the log."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str | None, tuple[int, ...] | None], Follow] = {}
        self.seq: int | None = None  # of the last line that was looked at

    def follow(self, wish: Follow, last: int) -> None:
        """Take a wish. `last` is the number of the last line there is."""
        key = wish.client, wish.mesh, wish.ranks
        if not wish.on:
            self._wanted.pop(key, None)
            return
        self._wanted[key] = wish
        after = last if wish.after is None else wish.after
        self.seq = after if self.seq is None else min(self.seq, after)

    def looked_at(self, seq: int) -> None:
        """All lines up to the one with this number were looked at."""
        self.seq = seq

    def keep_only(self, clients: Sequence[str]) -> None:
        """The others are gone."""
        self._wanted = {key: wish for key, wish in self._wanted.items() if key[0] in clients}
        if not self._wanted:
            self.seq = None

    @property
    def scope(self) -> tuple[str | None, tuple[int, ...] | None]:
        """The mesh and the ranks whose lines are wanted, or more than these."""
        wishes = list(self._wanted.values())
        if len(wishes) == 1:
            return wishes[0].mesh, wishes[0].ranks
        meshes = {wish.mesh for wish in wishes}
        return (meshes.pop() if len(meshes) == 1 else None), None

    def wanted(self, lines: Sequence[Line]) -> list[Line]:
        """Those of the lines that somebody wants."""
        wishes = list(self._wanted.values())
        return [line for line in lines if any(_wants(wish, line) for wish in wishes)]

    def __bool__(self) -> bool:
        return bool(self._wanted)


def _wants(wish: Follow, line: Line) -> bool:
    return wish.mesh in (None, line.mesh) and (wish.ranks is None or line.rank in wish.ranks)
