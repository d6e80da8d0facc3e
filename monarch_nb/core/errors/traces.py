"""The text of an error's record, laid out as Python lays out a traceback.

Knows nothing of exceptions, only of their records; machinery frames are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # records.py imports this file
    from monarch_nb.core.errors.records import ErrorRecord, FrameRecord

_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_DURING: Final = "During handling of the above exception, another exception occurred:"

Lookup = Callable[[str, int], str | None]
Label = Callable[[str], str | None]


def format_record(record: ErrorRecord, lookup: Lookup, label: Label) -> list[str]:
    """The lines of the traceback of `record`, its causes first, without newlines."""
    return list(_chain(record, lookup, label))


def _chain(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    earlier = record.cause or record.context
    if earlier:
        yield from _chain(earlier, lookup, label)
        yield from ("", _CAUSED if record.cause else _DURING, "")
    yield from _one(record, lookup, label)


def _one(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    if record.visible:
        yield "Traceback (most recent call last):"
    for frame in record.visible:
        yield from _frame(frame, lookup, label)
        if frame.skipped:
            yield f"  ... {frame.skipped} more frames ..."
    if record.place:
        yield from _frame(record.place, lookup, label)
    yield from record.headline.split("\n")
    for note in record.notes:
        yield from note.split("\n")
    yield from _members(record, lookup, label)


def _frame(frame: FrameRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    name = label(frame.filename)
    where = name if name is not None else f'File "{frame.filename}"'
    inside = f", in {frame.function}" if frame.function else ""
    yield f"  {where}, line {frame.lineno}{inside}"
    found = lookup(frame.filename, frame.lineno)
    text = (frame.line or "") if found is None else found.rstrip()
    if not text.strip():
        return
    yield f"    {text.strip()}"
    # the columns were counted in the line the rank compiled; a magic looks different in a notebook
    if frame.columns and text == frame.line:
        start, end = (column - (len(text) - len(text.lstrip())) for column in frame.columns)
        yield f"    {' ' * max(start, 0)}{'^' * max(end - max(start, 0), 1)}"


def _members(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    total = len(record.exceptions) + record.left_out
    for index, member in enumerate(record.exceptions, 1):
        yield f"  +---- {index} of {total} ----"
        for line in _chain(member, lookup, label):
            yield f"  | {line}" if line else "  |"
    if record.left_out:
        yield f"  +---- {record.left_out} more ----"
