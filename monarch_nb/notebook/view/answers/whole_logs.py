"""The whole logs of ranks in pieces, rank by rank, each line with the time at which it came: what a
browser saves as one file.

Rule of the file: nothing is kept between two pieces. What a browser asks with for the next is the
place of the last: `RANK:INODE:OFFSET`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.control.output.log_times import clock_text

if TYPE_CHECKING:
    from monarch_nb.control.api import Logbook

PIECE: Final = 1 << 20  # bytes of a log
_FORM: Final = "%Y-%m-%d %H:%M:%S"


def part(
    book: Logbook, mesh: str, ranks: Sequence[int] | None, after: str
) -> tuple[str, str | None]:
    """Return a piece of text, and what to ask with for the next; None after the last. `after`: ""
    to begin. Raises `ValueError` for a place that is none.
    """
    size = book.meshes().get(mesh, 0)
    wanted = [rank for rank in (range(size) if ranks is None else ranks) if rank < size]
    if not after:
        book.flush()
    rank, cursor = _place(after) if after else (-1, None)
    if cursor is None:
        rank = next((each for each in wanted if each > rank), -1)
    if rank not in wanted:
        return "", None
    lines, cursor = book.part(mesh, rank, cursor, PIECE)
    text = "".join(f"{clock_text(line.at, _FORM)} [{rank}] {line.text}\n" for line in lines)
    if cursor is not None:
        return text, f"{rank}:{cursor[0]}:{cursor[1]}"
    return text, f"{rank}" if rank != wanted[-1] else None


def _place(after: str) -> tuple[int, tuple[int, int] | None]:
    # A rank alone: its log has been told
    try:
        rank, *cursor = map(int, after.split(":"))
        if not cursor:
            return rank, None
        inode, offset = cursor
    except ValueError:
        raise ValueError(f"{after!r} is no place in a log") from None
    return rank, (inode, max(offset, 0))
