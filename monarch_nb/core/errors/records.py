"""What an exception looks like once it has left its process: plain data to send, group and render.

Rule: nothing of the exception is trusted. Its `__str__` may raise, its message may be 100 MB long,
its causes may form a ring; the record is made all the same, small, of plain strings and integers.
This file does not know where a cell's source is kept: whoever renders a record brings a lookup.
"""

from __future__ import annotations

import dataclasses
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from itertools import groupby, islice
from types import TracebackType
from typing import Any, Final

from monarch_nb.errors import ActorError, RemoteProtocolError

MAX_TEXT: Final = 10_000  # characters of a message; Dask's limit
MAX_LINE: Final = 500
MAX_UNDERLINED: Final = 84  # characters of a line with carets
BEFORE_CARETS: Final = 24  # of those before the first
MAX_NOTES: Final = 20
MAX_RECORDS: Final = 32  # of one chain of causes and groups, which also bounds the depth
MAX_MEMBERS: Final = 15  # of one exception group, as CPython prints
HEAD_FRAMES: Final = 24
TAIL_FRAMES: Final = 40
MAX_REPEATS: Final = 3  # equal frames in a row, as CPython prints

_MALFORMED: Final = (
    AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError
)  # fmt: skip

Hide = Callable[[str], bool]
Lookup = Callable[[str, int], str | None]
Label = Callable[[str], str | None]

_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_DURING: Final = "During handling of the above exception, another exception occurred:"

_OWN: Final = __file__.rpartition("core")[0]
_MACHINERY: Final = (
    "/IPython/core/",
    "/IPython/utils/",
    "/debugpy/_vendored/",
    "_pydevd_bundle/",
    "_pydevd_sys_monitoring/",
    "<stringsource>",  # Cython's own, below that
    "/asyncio/base_events.py",
    "/asyncio/events.py",
    "/asyncio/runners.py",
    "/runpy.py",
    "/torch/_ops.py",
    "<frozen runpy>",
    "<frozen importlib",
    *(f"/python3.{sys.version_info[1]}/{name}.py" for name in ("bdb", "pdb", "cmd")),
)


def is_internal(filename: str) -> bool:
    """Tell whether a file is machinery no user should see: ours, IPython's, a debugger's."""
    return filename.startswith(_OWN) or any(part in filename for part in _MACHINERY)


@dataclasses.dataclass(frozen=True, slots=True)
class FrameRecord:
    """One line of a traceback.

    `line` is the source as the rank saw it, unstripped, or None; `columns` are the characters of it
    that failed; `skipped` counts frames that were left out just after this one.
    """

    filename: str
    lineno: int
    function: str
    line: str | None = None
    is_internal: bool = False
    columns: tuple[int, int] | None = None
    skipped: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An exception as plain data.

    `context` is None where Python would not print it; `place` is where the text of a `SyntaxError`
    is wrong; `left_out` counts members of an exception group beyond those kept in `exceptions`.
    Of a process that has `died` nothing was raised: `evalue` tells how, `frames` where it crashed.
    """

    ename: str
    evalue: str
    module: str = "builtins"
    frames: tuple[FrameRecord, ...] = ()
    place: FrameRecord | None = None
    notes: tuple[str, ...] = ()
    cause: ErrorRecord | None = None
    context: ErrorRecord | None = None
    exceptions: tuple[ErrorRecord, ...] = ()
    left_out: int = 0
    died: bool = False

    @staticmethod
    def from_exception(
        exc: BaseException, hide: Hide = is_internal, source: Lookup = linecache.getline
    ) -> ErrorRecord:
        """Return the record of `exc` and of all that it carries. Never raises, whatever `exc` does.

        Frames of files that `hide` are kept but marked; `source` gives the text of a line.
        """
        return _Reader(hide, source).read(exc)

    @property
    def headline(self) -> str:
        """`ValueError: bad`, as the last line of Python's traceback says it."""
        plain = self.module in ("builtins", "__main__", "IPython.core.error")
        name = self.ename if plain else f"{self.module}.{self.ename}"
        return f"{name}: {self.evalue}" if self.evalue else name

    @property
    def visible(self) -> tuple[FrameRecord, ...]:
        return tuple(frame for frame in self.frames if not frame.is_internal)

    def signature(self) -> tuple[object, ...]:
        """Return what is equal for errors that arose in the same way; their messages may differ."""
        frames = tuple((frame.filename, frame.lineno, frame.function) for frame in self.visible)
        place = self.place and (self.place.filename, self.place.lineno)
        below = tuple(one and one.signature() for one in (self.cause, self.context))
        members = tuple(one.signature() for one in self.exceptions)
        return self.module, self.ename, frames, place, below, members

    def format(self, lookup: Lookup | None = None, label: Label | None = None) -> list[str]:
        """Return the traceback as lines without newlines, user frames only.

        `lookup(filename, lineno)` gives the text of a line, `label(filename)` the name of a file;
        None means what the rank saw.
        """
        return list(_format(self, lookup or _nothing, label or _nothing))

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts and lists, without the fields that are at their defaults."""
        data: dict[str, Any] = {"ename": self.ename, "evalue": self.evalue, "module": self.module}
        data["frames"] = [dataclasses.astuple(frame) for frame in self.frames]
        if self.place:
            data["place"] = dataclasses.astuple(self.place)
        if self.notes:
            data["notes"] = list(self.notes)
        for name, one in (("cause", self.cause), ("context", self.context)):
            if one:
                data[name] = one.to_json()
        if self.exceptions:
            data["exceptions"] = [one.to_json() for one in self.exceptions]
        if self.left_out:
            data["left_out"] = self.left_out
        return data

    @staticmethod
    def from_json(data: Any) -> ErrorRecord:
        """Raises `RemoteProtocolError` for anything that `to_json` does not make."""
        try:
            return _revived(data)
        except _MALFORMED as error:
            raise RemoteProtocolError(f"not the record of an error: {error}") from error


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text`, or its head and a note of how much was cut; always encodable as UTF-8."""
    if len(text) > limit:
        text = f"{text[:limit]}... [{len(text) - limit} more characters]"
    return text.encode("utf-8", "backslashreplace").decode()


class _Reader:
    """Reads one exception and what hangs on it; knows what it has seen already."""

    def __init__(self, hide: Hide, source: Lookup) -> None:
        self._hide = hide
        self._source = source
        self._seen: set[int] = set()

    def read(self, exc: BaseException) -> ErrorRecord:
        self._seen.add(id(exc))
        place = self._place(exc) if isinstance(exc, SyntaxError) else None
        members = _members(exc)
        told = isinstance(exc, ActorError)  # in its own text already
        cause = None if told else self._linked(_CAUSE(exc))
        context = None if cause or told or _SUPPRESS(exc) else self._linked(_CONTEXT(exc))
        kept = [self._linked(one) for one in members[:MAX_MEMBERS]]
        exceptions = tuple(one for one in kept if one)
        return ErrorRecord(
            ename=_attribute_text(type(exc), "__name__"),
            evalue=_attribute_text(exc, "msg") if place else _message(exc),
            module=_attribute_text(type(exc), "__module__"),
            frames=tuple(self._frames(_TRACEBACK(exc))),
            place=place,
            notes=_notes(exc),
            cause=cause,
            context=context,
            exceptions=exceptions,
            left_out=len(members) - len(exceptions),
        )

    def _linked(self, exc: BaseException | None) -> ErrorRecord | None:
        # None if it closes a ring or there were too many
        if exc is None or id(exc) in self._seen or len(self._seen) >= MAX_RECORDS:
            return None
        return self.read(exc)

    def _frames(self, trace: TracebackType | None) -> Iterator[FrameRecord]:
        for one, skipped in _thinned(_walk(trace)):
            code = one.tb_frame.f_code
            filename, lineno = str(code.co_filename), one.tb_lineno or 0
            internal = self._hide(filename)
            line = None if internal else self._line(filename, lineno)
            columns = _columns(one, line) if line else None
            yield FrameRecord(filename, lineno, code.co_name, line, internal, columns, skipped)

    def _line(self, filename: str, lineno: int) -> str | None:
        try:
            text = self._source(filename, lineno)
        except Exception:  # noqa: BLE001  a module's loader may do anything
            return None
        return clip(text.rstrip(), MAX_LINE) if text else None

    def _place(self, exc: SyntaxError) -> FrameRecord | None:
        filename, lineno, text = exc.filename, exc.lineno, exc.text
        if not isinstance(filename, str) or not isinstance(lineno, int):
            return None
        own = text.rstrip() if isinstance(text, str) else None
        line = clip(own, MAX_LINE) if own is not None else self._line(filename, lineno)
        return FrameRecord(filename, lineno, "", line, columns=_syntax_columns(exc, line or ""))


# The slots of BaseException itself: a subclass may hide them behind properties that raise.
_CAUSE: Final = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Final = BaseException.__dict__["__context__"].__get__
_SUPPRESS: Final = BaseException.__dict__["__suppress_context__"].__get__
_TRACEBACK: Final = BaseException.__dict__["__traceback__"].__get__


def _message(exc: BaseException) -> str:
    try:
        text = str(exc)
    except BaseException as error:  # noqa: BLE001  `__str__` is the user's code
        name = _attribute_text(type(error), "__name__")
        return f"<the message cannot be shown: __str__ raised {name}>"
    return clip(str.__str__(text))


def _attribute_text(owner: object, name: str) -> str:
    try:
        value = getattr(owner, name)
    except BaseException:  # noqa: BLE001  a metaclass may do anything
        return "?"
    return clip(str.__str__(value), MAX_LINE) if isinstance(value, str) else "?"


def _notes(exc: BaseException) -> tuple[str, ...]:
    try:
        notes = [str.__str__(str(note)) for note in islice(exc.__notes__, MAX_NOTES)]
    except BaseException:  # noqa: BLE001  absent, no sequence, or of things that cannot be shown
        return ()
    return tuple(clip(note) for note in notes)


def _members(exc: BaseException) -> Sequence[BaseException]:
    if not isinstance(exc, BaseExceptionGroup):
        return ()
    members: Sequence[BaseException] = BaseExceptionGroup.__dict__["exceptions"].__get__(exc)
    return members


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        if not _is_doubled(trace):
            yield trace
        trace = trace.tb_next


def _is_doubled(trace: TracebackType) -> bool:
    # where an interrupt comes up while a debugger holds a line, Python notes that line twice
    after = trace.tb_next
    return (
        after is not None
        and after.tb_frame is trace.tb_frame
        and after.tb_lineno == trace.tb_lineno
    )


def _thinned(traces: Iterator[TracebackType]) -> list[tuple[TracebackType, int]]:
    # The traces to keep, each with the number of those left out after it: repeats, the middle
    head: list[tuple[TracebackType, int]] = []
    tail: deque[tuple[TracebackType, int]] = deque()
    for _, run in groupby(traces, key=lambda one: (id(one.tb_frame.f_code), one.tb_lineno)):
        for one in islice(run, MAX_REPEATS):
            (head if len(head) < HEAD_FRAMES else tail).append((one, 0))
            if len(tail) > TAIL_FRAMES:
                _add_to_last(head, 1 + tail.popleft()[1])
        _add_to_last(tail or head, sum(1 for _ in run))
    return [*head, *tail]


def _add_to_last(kept: MutableSequence[tuple[TracebackType, int]], skipped: int) -> None:
    one, already = kept[-1]
    kept[-1] = one, already + skipped


def _columns(trace: TracebackType, line: str) -> tuple[int, int] | None:
    code, index = trace.tb_frame.f_code, trace.tb_lasti // 2
    position = next(islice(code.co_positions(), index, None), (None,) * 4)
    start_line, end_line, start, end = position
    if start_line != trace.tb_lineno or start is None or end is None:
        return None
    raw = line.encode()  # the positions count bytes
    last = len(line) if end_line != start_line else len(raw[:end].decode(errors="replace"))
    return _worthwhile(len(raw[:start].decode(errors="replace")), last, line)


def _syntax_columns(exc: SyntaxError, line: str) -> tuple[int, int] | None:
    if not isinstance(exc.offset, int) or exc.offset < 1:
        return None
    start, end = exc.offset - 1, exc.end_offset
    same_line = isinstance(end, int) and exc.end_lineno == exc.lineno and end - 1 > start
    last = end - 1 if same_line and isinstance(end, int) else start + 1
    return min(start, len(line)), min(last, len(line) + 1)


def _worthwhile(start: int, end: int, line: str) -> tuple[int, int] | None:
    # columns that are the whole line would say nothing
    whole = len(line) - len(line.lstrip())
    inside = 0 <= start < end <= len(line)
    return (start, end) if inside and (start > whole or end < len(line)) else None


# the text of a record, laid out as Python lays out a traceback


def _format(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    earlier = record.cause or record.context
    if earlier:
        yield from _format(earlier, lookup, label)
        yield from ("", _CAUSED if record.cause else _DURING, "")
    yield from _traceback(record, lookup, label)


def _traceback(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    if record.visible:
        yield "Traceback (most recent call last):"
    for frame in record.visible:
        yield from _frame_lines(frame, lookup, label)
        if frame.skipped:
            yield f"  ... {frame.skipped} more frames ..."
    if record.place:
        yield from _frame_lines(record.place, lookup, label)
    yield from record.headline.split("\n")
    for note in record.notes:
        yield from note.split("\n")
    yield from _member_lines(record, lookup, label)


def _frame_lines(frame: FrameRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    name = label(frame.filename)
    where = name if name is not None else f'File "{frame.filename}"'
    inside = f", in {frame.function}" if frame.function else ""
    yield f"  {where}, line {frame.lineno}{inside}"
    found = lookup(frame.filename, frame.lineno)
    text = (frame.line or "") if found is None else found.rstrip()
    if not text.strip():
        return
    # the columns were counted in the line the rank compiled; a magic looks different in a notebook
    if frame.columns and text == frame.line:
        start, end = (column - (len(text) - len(text.lstrip())) for column in frame.columns)
        # one past the end, where something is missing
        start = min(max(start, 0), len(text.strip()))
        yield from _underlined(text.strip(), start, max(end, start + 1))
    else:
        yield f"    {text.strip()}"


def _underlined(line: str, start: int, end: int) -> Iterator[str]:
    # A part of a long line: a page would wrap it, and the carets would stand below something else
    first = max(min(start - BEFORE_CARETS, len(line) - MAX_UNDERLINED), 0)
    last = first + MAX_UNDERLINED
    before, after = "..." if first else "", "..." if last < len(line) else ""
    indent = " " * (start - first + len(before))
    yield f"    {before}{line[first:last]}{after}"
    yield f"    {indent}{'^' * max(min(end, last) - start, 1)}"


def _member_lines(record: ErrorRecord, lookup: Lookup, label: Label) -> Iterator[str]:
    total = len(record.exceptions) + record.left_out
    for index, member in enumerate(record.exceptions, 1):
        yield f"  +---- {index} of {total} ----"
        for line in _format(member, lookup, label):
            yield f"  | {line}" if line else "  |"
    if record.left_out:
        yield f"  +---- {record.left_out} more ----"


# from JSON


def _revived(data: dict[str, Any]) -> ErrorRecord:
    cause, context, place = data.get("cause"), data.get("context"), data.get("place")
    return ErrorRecord(
        ename=str(data["ename"]),
        evalue=str(data["evalue"]),
        module=str(data["module"]),
        frames=tuple(_revived_frame(frame) for frame in data["frames"]),
        place=_revived_frame(place) if place else None,
        notes=tuple(str(note) for note in data.get("notes", ())),
        cause=_revived(cause) if cause else None,
        context=_revived(context) if context else None,
        exceptions=tuple(_revived(one) for one in data.get("exceptions", ())),
        left_out=int(data.get("left_out", 0)),
    )


def _revived_frame(data: Sequence[Any]) -> FrameRecord:
    filename, lineno, function, line, internal, columns, skipped = data
    return FrameRecord(
        str(filename),
        int(lineno),
        str(function),
        None if line is None else str(line),
        bool(internal),
        (int(columns[0]), int(columns[1])) if columns else None,
        int(skipped),
    )


def _nothing(*_: object) -> None:
    return None
