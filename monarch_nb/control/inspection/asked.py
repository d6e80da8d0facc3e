"""What is asked of a kernel, and read there: one line of JSON.

Rule: whatever a line says, it is a question that makes sense, or refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from monarch_nb.core.shape.selection import MAX_RANK

SCHEMA: Final = 1
"""Of the answers; docs/terminal.md has them. It grows when something there changes or goes."""
TOPICS: Final = ("hello", "status", "logs", "stacks", "stops", "vars")
MAX_LINES: Final = 20_000  # of logs


@dataclass(frozen=True)
class Asked:
    """`topic`: one of `TOPICS`. None for all of `mesh` and `ranks`. Of logs: `lines`, how many of
    each rank; `follow`, those that come too. Of the status: `each`, rank by rank too."""

    topic: str
    mesh: str | None = None
    ranks: tuple[int, ...] | None = None
    lines: int = 20
    follow: bool = False
    each: bool = False

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Asked:
        """Read it. Raises `ValueError` for what is none."""
        try:
            said = json.loads(line)
            ranks = None if said["ranks"] is None else tuple(said["ranks"])
            asked = Asked(**{**said, "ranks": ranks})
        except (KeyError, RecursionError, TypeError, ValueError):
            raise ValueError("this is no question of monarch-nb") from None
        if not _makes_sense(asked):
            raise ValueError("this kernel is of another version, and knows no such question")
        return asked


def _makes_sense(asked: Asked) -> bool:
    return (
        asked.topic in TOPICS
        and isinstance(asked.mesh, str | None)
        and asked.ranks != ()
        and all(type(rank) is int and 0 <= rank <= MAX_RANK for rank in asked.ranks or ())
        and type(asked.lines) is int
        and 0 < asked.lines <= MAX_LINES
        and type(asked.follow) is bool
        and type(asked.each) is bool
    )
