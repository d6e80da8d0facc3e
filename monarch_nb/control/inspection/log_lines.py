"""What ranks have written, and what they write: lines for a terminal.

Rule: the last lines are those of the logbook, where everything is; who follows gets those that the
tail keeps, each with its time, and is told how many were left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.control.inspection.reports import names, ranks_of, states
from monarch_nb.core.errors.records import clip

if TYPE_CHECKING:
    from monarch_nb.control.inspection.asked import Asked
    from monarch_nb.control.inspection.reports import Inspected
    from monarch_nb.control.output.tail import Line

MAX_LINE: Final = 20_000
MAX_CHARS: Final = 8 << 20  # of an answer
KEPT: Final = 20_000  # lines of the tail
AT_ONCE: Final = 1_000
NO_MESH: Final = "no mesh has been up there yet"


def last(inspected: Inspected, asked: Asked) -> dict[str, Any]:
    """Tell the last lines of each rank."""
    name, size, ranks = _meant(inspected, asked)
    book = inspected.output.logbook
    book.flush()
    room, left_out = MAX_CHARS // len(ranks), 0
    found: list[dict[str, Any]] = []
    for rank in ranks:
        lines = book.last(name, rank, asked.lines)
        texts = [clip(each.text, MAX_LINE) for each in lines]
        kept = _newest(texts, room)
        left_out += len(texts) - len(kept)
        times = [each.at for each in lines[len(texts) - len(kept) :]]
        found += [
            {"rank": rank, "text": text, "at": at} for text, at in zip(kept, times, strict=True)
        ]
    return {
        "mesh": name,
        "size": size,
        "folder": str(book.folder),
        "lines": found,
        "left_out": left_out,
    }


def follow(inspected: Inspected, asked: Asked, ticks: Iterable[None]) -> Iterator[dict[str, Any]]:
    """Tell the last lines, then those that come, looking for them at each tick."""
    name, size, ranks = _meant(inspected, asked)
    tail, wanted = inspected.output.tail, set(ranks)
    seq = tail.seq
    of_rank: dict[int, deque[Line]] = {rank: deque(maxlen=asked.lines) for rank in ranks}
    for line in tail.last(KEPT, name, wanted, before=seq + 1):
        of_rank[line.rank].append(line)
    known = sorted((line for those in of_rank.values() for line in those), key=lambda one: one.seq)
    yield _told(name, size, known, 0)
    for _ in ticks:
        if tail.seq != seq:
            found, left_out, seq = tail.after(seq, name, wanted, AT_ONCE)
            if found or left_out:
                yield _told(name, size, found, left_out)


def _told(name: str, size: int, lines: Iterable[Line], left_out: int) -> dict[str, Any]:
    found = [
        {
            "rank": line.rank,
            "text": clip(line.text, MAX_LINE),
            "stream": line.stream,
            "level": line.level,
            "at": round(line.at, 3),
        }
        for line in lines
    ]
    return {"mesh": name, "size": size, "lines": found, "left_out": left_out}


def _newest(texts: list[str], room: int) -> list[str]:
    kept = 0
    for text in reversed(texts):
        if (room := room - len(text)) < 0:
            break
        kept += 1
    return texts[len(texts) - kept :]


def _meant(inspected: Inspected, asked: Asked) -> tuple[str, int, list[int]]:
    # the mesh that has written last, unless one is named; it may be down by now
    written = inspected.output.logbook.meshes()
    sizes = {each.name: len(each.processes) for each in states(inspected)} | written
    name = asked.mesh or next(reversed(written), next(reversed(sizes), None))
    if name is None:
        raise ValueError(NO_MESH)
    if name not in sizes:
        raise ValueError(f"there is no mesh {name!r}; there: {', '.join(names(inspected))}")
    return name, sizes[name], ranks_of(name, sizes[name], asked.ranks)
