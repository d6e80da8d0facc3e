"""Where in a cell somebody types: in the line of a magic of ours, in code for ranks, or neither.

Rule of the file: text in, place out. Offsets are in code points, as Jupyter's are. It says what
IPython would do with the cell, so the first line that is not empty decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_CELL: Final = re.compile(r"(?:[ \t]*\n)*%%(?:mesh|px)(?!\w)(?P<line>[^\n]*)\n?")
_LINE: Final = re.compile(r"[ \t]*%mesh(?!\w)")
_PX: Final = re.compile(r"[ \t]*%px(?!\w)[ \t]*")


@dataclass(frozen=True)
class MeshLine:
    """In what follows `%mesh`, or `%%mesh` if `is_cell`: the text up to the cursor."""

    is_cell: bool
    text: str
    start: int


@dataclass(frozen=True)
class RankCode:
    """In code for the ranks that `line` selects. `start` is where the code begins in the cell."""

    line: str
    code: str
    start: int
    cursor: int


Place = MeshLine | RankCode


def place(cell: str, cursor: int, auto: Callable[[list[str]], str | None]) -> Place | None:
    """The place of the cursor; None in code of the controller's.

    `auto` says what stands after the `%%mesh` that a cell of these lines gets by itself, if it
    does.
    """
    if head := _CELL.match(cell):
        if cursor >= head.end() and head[0].endswith("\n"):
            return RankCode(head["line"], cell[head.end() :], head.end(), cursor - head.end())
        return _in_line(True, cell, head.start("line"), cursor)
    if (line := auto(cell.splitlines(keepends=True))) is not None:
        return RankCode(line, cell, 0, cursor)
    return _in_local_code(cell, cursor)


def _in_local_code(cell: str, cursor: int) -> Place | None:
    begin = cell.rfind("\n", 0, cursor) + 1
    end = cell.find("\n", cursor)
    line = cell[begin : end if end >= 0 else len(cell)]
    if head := _PX.match(line):
        start = begin + head.end()
        return RankCode("", line[head.end() :], start, cursor - start) if cursor >= start else None
    if head := _LINE.match(line):
        return _in_line(False, cell, begin + head.end(), cursor)
    return None


def _in_line(is_cell: bool, cell: str, start: int, cursor: int) -> MeshLine | None:
    # None while the name of the magic is still being typed
    text = cell[start:cursor]
    return MeshLine(is_cell, text, start) if text else None
