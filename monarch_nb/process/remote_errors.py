"""Errors on their way: an exception becomes plain data plus, where it survives, itself.

The original is attached only if it makes a round trip on the side where it was raised; the text of
the traceback is rendered where it is read, because the lines of notebook cells are known there.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Final

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.errors import ActorError, CallCancelled, CallInterrupted, SupervisionError

RAISED: Final = "raised"  # an endpoint raised: ActorError
RAW: Final = "raw"  # Port.exception: the exception itself
LOST: Final = "lost"  # the actor is dead or stopped: SupervisionError
UNBOOTED: Final = "unbooted"  # the bootstrap function of its process raised: ActorError
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"
RESTARTED: Final = (
    "The actor is restarted: later calls go to the new one, this one is not run again."
)
SETUP: Final = "setup.setup"  # Monarch's name for the bootstrap function


def pack(kind: str, error: BaseException | None, text: str = "", record: object = None) -> bytes:
    """Return the payload of an ERROR message. Never raises for anything that `error` does.

    `record` is that of `error`, where it has been made already.
    """
    if record is None and error is not None:
        record = record_of(error)
    return pickling.dumps((kind, text, record, None if error is None else _survivor(error)))


def summary(payload: Buffer) -> str | None:
    """Say what an endpoint raised in one line: "ValueError: bad"; None if it was not user code.

    Runs nothing of the user's: the exception itself stays as it came.
    """
    kind, _, record, _ = pickling.loads(payload)  # our own tuple of plain data
    if kind != RAISED or record is None:
        return None
    stored = ErrorRecord.from_json(record)
    return f"{stored.ename}: {stored.evalue}".splitlines()[0][:500]


def unpack(payload: Buffer, *, what: str, rank: int | None, size: int) -> BaseException:
    kind, text, record, original = pickling.loads(payload)
    if kind in {RAW, RAISED}:
        error = revive(original, record)
        return error if kind == RAW else _actor_error(error, record, what, rank, size)
    if kind == UNBOOTED:
        return _actor_error(revive(original, record), record, SETUP, rank, size)
    if kind == CANCELLED:
        return CallCancelled(f"{what} was cancelled before it started")
    if kind == INTERRUPTED:
        return CallInterrupted(f"{what} was interrupted")
    lost = SupervisionError(
        f"Endpoint call {what}() failed, {text}", ranks=() if rank is None else (rank,)
    )
    lost.endpoint = f"{what}()"
    if original is not None or record is not None:
        lost.__cause__ = revive(original, record)
    return lost


def unbooted(record: ErrorRecord, rank: int, size: int) -> ActorError:
    data = record.to_json()
    return _actor_error(revive(None, data), data, SETUP, rank, size)


def render(record: ErrorRecord) -> str:
    """Return the remote traceback as text, with the lines of notebook cells filled in from here."""
    return "\n".join(record.format(_local_line, _names.of_file)) + "\n"


def place(filename: str, lineno: int) -> tuple[str, str]:
    """Return a line as tracebacks name it, and its text; empty where it is not known here."""
    name = name_of(filename)
    text = (_local_line(filename, lineno) or "").strip()
    quoted = f'File "{filename}"'
    return f"{name or quoted}, line {lineno}", text


def name_of(filename: str) -> str | None:
    return _names.of_file(filename) if _names.of_file is not None else None


class _Names:
    of_file: Callable[[str], str | None] | None = None


_names = _Names()


def name_files(of_file: Callable[[str], str | None] | None) -> None:
    """Let tracebacks of ranks call a file `of_file(filename)`, where that is not None."""
    _names.of_file = of_file


def _local_line(filename: str, lineno: int) -> str | None:
    return linecache.getline(filename, lineno).rstrip("\n") or None


def said_plainly(error: BaseException) -> BaseException:
    """Choose the error to tell of: `sys.exit` in an endpoint ends no process."""
    if type(error) is SystemExit:
        plain = RuntimeError(f"the endpoint called sys.exit({error.code!r})")
        plain.__traceback__ = error.__traceback__
        return plain
    return error


def one_line(error: BaseException) -> str:
    try:
        text = str(error).splitlines()[0][:300] if str(error) else ""
    except BaseException:  # noqa: BLE001  a __str__ that raises
        text = "<its text cannot be had>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def record_of(error: BaseException) -> object:
    """Write an exception as JSON. Never raises."""
    try:
        return ErrorRecord.from_exception(error).to_json()
    except BaseException as worse:  # noqa: BLE001  hostile exceptions are what this is for
        kind = type(error)
        text = f"<it cannot be described: {type(worse).__name__}>"
        return ErrorRecord(kind.__name__, text, kind.__module__).to_json()


def _survivor(error: BaseException) -> bytes | None:
    try:
        data = pickling.dumps(error)
        if len(data) > 1 << 20 or type(pickling.loads(data)) is not type(error):
            return None
        return data
    except BaseException:  # noqa: BLE001  hostile exceptions are what this is for
        return None


def revive(original: bytes | None, record: object) -> BaseException:
    """Return the exception itself, or its stand-in where it could not make the journey."""
    stored = ErrorRecord.from_json(record)
    stand_in = RemoteException(stored.ename, stored.evalue)
    if original is None:
        return stand_in
    try:
        error = pickling.loads(original)
    except BaseException:  # noqa: BLE001  not importable here
        return stand_in
    return error if isinstance(error, BaseException) else stand_in


# it stands for any exception, not for an error of ours
class RemoteException(Exception):
    """Stands for an exception that could not make the journey: its type's name and its text."""

    def __init__(self, ename: str = "", evalue: str = "") -> None:
        super().__init__(ename, evalue)

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}"


def _actor_error(
    error: BaseException, record: object, what: str, rank: int | None, size: int
) -> ActorError:
    stored = ErrorRecord.from_json(record)
    place = f" on rank {rank} of {size}" if rank is not None and size > 1 else ""
    said = f"Actor call {what} failed{place}."
    found = ActorError(error, said, rank=rank, traceback_text=render(stored))
    found.record = stored
    return found
