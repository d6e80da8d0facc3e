"""Tracebacks on the controller show the user's code: cells with their own lines, and none of our
frames.

Rules of the file: a frame of ours and what it called in the standard library or a dependency is
hidden; what it called back in the user's code is shown; nothing is mutated, so that `%debug` still
finds every frame.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.records import ErrorRecord, clip
from monarch_nb.errors import ActorError

_OURS = str(Path(__file__).parents[1]) + "/"
_MAX_NAME: Final = 200
NAMES_OF_RANKS: Final = frozenset({"rank", "size", "coords", "device"})
_LIBRARIES = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib"))


def prune(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without our frames. None when nothing else is in it."""
    kept: list[TracebackType] = []
    inside = False
    while tb is not None:
        filename = tb.tb_frame.f_code.co_filename
        ours = is_ours(filename)
        inside = ours or (inside and filename.startswith(_LIBRARIES))
        if not inside:
            kept.append(tb)
        tb = tb.tb_next
    pruned = None
    for entry in reversed(kept):
        pruned = TracebackType(pruned, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return pruned


def is_ours(filename: str) -> bool:
    """Tell whether a file belongs to monarch_nb, or to its kernel."""
    return filename.startswith(_OURS) or "/monarch_kernel/" in filename


def is_library(filename: str) -> bool:
    """Tell whether a file is ours, Python's or a dependency's, rather than the user's."""
    return filename.startswith((_OURS, *_LIBRARIES, "<frozen "))


def hide_our_frames(shell: InteractiveShell) -> Callable[[], None]:
    """Make the shell's tracebacks go through `prune`. Returns what undoes it."""
    formatter = shell.InteractiveTB
    original = formatter.structured_traceback

    def structured_traceback(
        etype: type,
        value: BaseException | None = None,
        tb: TracebackType | None = None,
        *rest: Any,
        **named: Any,
    ) -> list[str]:
        with _without_told_cause(value):
            lines = original(etype, value, prune(tb) or tb, *rest, **named)
        return [*lines, *_hint(value)]

    def undo() -> None:
        vars(formatter).pop("structured_traceback", None)

    vars(formatter)["structured_traceback"] = structured_traceback
    return undo


def _hint(error: BaseException | None) -> list[str]:
    if isinstance(error, NameError) and error.name in NAMES_OF_RANKS:
        return [f"{error.name} is a name that ranks have; %%mesh above the cell runs it there"]
    return []


@contextlib.contextmanager
def _without_told_cause(error: BaseException | None) -> Iterator[None]:
    # The text of an `ActorError` holds the remote traceback: its cause would say it twice
    if not isinstance(error, ActorError):
        yield
        return
    cause, error.__cause__ = error.__cause__, None
    try:
        yield
    finally:
        error.__cause__ = cause


def file_of_cell(shell: InteractiveShell) -> str | None:
    """Return the file name under which IPython compiled the cell that is calling, if one is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is shell.user_global_ns:
            return frame.f_code.co_filename
        frame = frame.f_back
    return None


def place_of_body(shell: InteractiveShell, source: str, tag: int, body: str) -> tuple[str, int]:
    """Return the file name and the line at which the body of the running `%%mesh` cell begins.

    These are the cell's own if the body is the rest of its source, else a file of its own;
    tracebacks and debuggers show them on both sides.
    """
    filename = file_of_cell(shell)
    if filename is not None and source.rstrip().endswith(body.rstrip()):
        remember(filename, source)
        return filename, first_line(source, body)
    filename = f"<mesh cell {tag}>"
    remember(filename, body)
    return filename, 1


def line_of_cell(shell: InteractiveShell, filename: str, lineno: int) -> str | None:
    """Return a line of a cell, for tracebacks of ranks; None for a file that is no cell."""
    if name_of_cell(shell, filename) is None:
        return None
    return linecache.getline(filename, lineno) or None


def source_line(shell: InteractiveShell, filename: str, lineno: int) -> str:
    """Return a line of a cell or a file without its indent; empty where it is not known here."""
    return (line_of_cell(shell, filename, lineno) or linecache.getline(filename, lineno)).strip()


def name_of_cell(shell: InteractiveShell, filename: str) -> str | None:
    """Return `Cell In[3]`, as IPython names it; None for a file that is no cell."""
    found = shell.compile.format_code_name(filename)
    return " ".join(found) if found else None


def named_place(shell: InteractiveShell, place: str) -> str:
    """Return `Cell In[5]:3 step()` for `123.py:3 step()` of a cell; any other as it is."""
    file, colon, rest = place.partition(":")
    paths = vars(shell.compile).get("_filename_map", {})
    path = next((each for each in list(paths) if each.rpartition("/")[2] == file), file)
    return f"{name_of_cell(shell, path) or file}{colon}{rest}"


def place_of_error(shell: InteractiveShell, record: ErrorRecord) -> str:
    """Return the user's line at which an error arose: `Cell In[5], line 3`, `train.py, line 12`."""
    theirs = [each for each in record.visible if not is_library(each.filename)]
    frame = (theirs or record.visible or (record.place,))[-1]
    if frame is None:
        return ""
    file = name_of_cell(shell, frame.filename) or frame.filename.rpartition("/")[2]
    return f"{clip(file, _MAX_NAME)}, line {frame.lineno}"


def remember(filename: str, source: str) -> None:
    """Let tracebacks find these lines: IPython has kept the transformed cell, which is one line."""
    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[filename] = (len(source), None, lines, filename)


def remember_body(filename: str, first_line: int, body: str) -> None:
    """The same for a cell of another kernel, of which only the body is known."""
    remember(filename, "\n" * (first_line - 1) + body)


def name_cell(shell: InteractiveShell, filename: str, number: int) -> None:
    """Name a cell of another kernel in tracebacks, as IPython does its own."""
    if not filename.startswith("<"):
        vars(shell.compile).setdefault("_filename_map", {})[filename] = number


def first_line(cell: str, body: str) -> int:
    """Return the line of the cell at which the body of its cell magic begins."""
    return _lines(cell) - _lines(body) + 1


def _lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1
