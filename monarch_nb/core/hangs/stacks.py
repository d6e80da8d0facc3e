"""Where a process is, or was when it crashed: the text that faulthandler writes, read into frames.

The signal's handler writes it, so it comes also while C code holds the interpreter. Python names no
C function: the innermost frame is the line that called it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.errors.records import is_internal

_HEADING: Final = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-f]+) .*\(most recent call first\):"
)
_CURRENT: Final = "Current thread 0x"
_LIBRARY: Final = re.compile(r"/lib/python3\.\d+t?/(?!(?:site|dist)-packages/)")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LAST: Final = ("in _run_module_as_main\n", "\n  ...\n")
"""How the outermost call of a rank's main thread is written, or one that is too deep to show."""


UNNAMED: Final = "another thread"
"""What a thread is called whose name is not known."""

FATAL: Final = "Fatal Python error: "
"""How the report of a crash begins."""


class Frame(NamedTuple):
    """One call; `line` is 0 where Python does not know it."""

    file: str
    line: int
    function: str


class Crash(NamedTuple):
    """What stands before faulthandler's report, what happened, and the calls of the thread that
    crashed, innermost first; of the main thread where Python does not know that one."""

    before: str
    what: str
    frames: list[Frame]


def crash(text: str) -> Crash | None:
    """Return the crash that a process wrote of before it died, if it did.

    Example:
        >>> crash("hi\\nFatal Python error: Aborted\\n\\n"
        ...       "Current thread 0x7f (most recent call first):\\n  File \"a.py\", line 3 in f\\n")
        Crash(before='hi\\n', what='Aborted', frames=[Frame(file='a.py', line=3, function='f')])
    """
    before, found, report = text.partition(FATAL)
    if not found:
        return None
    what, _, rest = report.partition("\n")
    from_current = threads(rest[rest.find(_CURRENT) :]) if _CURRENT in rest else []
    frames = from_current[0] if from_current else []
    if not frames:
        frames = (threads(rest) or [[]])[-1]
    return Crash(before, what, frames)


def is_of_python(file: str) -> bool:
    """Tell whether a file is of Python's own library, wherever that is installed.

    Example:
        >>> is_of_python("/usr/lib/python3.11/threading.py")
        True
    """
    return file.startswith("<frozen ") or bool(_LIBRARY.search(file))


def file_name(process: int) -> str:
    """Return the stacks file of a rank, in the run folder of its host."""
    return f"{process:016x}.stacks"


def is_whole(text: str) -> bool:
    """Tell whether a rank has written to the end: that of its main thread, which comes last."""
    return text.endswith(_LAST)


def threads(text: str) -> list[list[Frame]]:
    """Return the frames of each thread, innermost first.

    Example:
        >>> threads('Thread 0x7f (most recent call first):\\n  File "a.py", line 3 in f\\n')
        [[Frame(file='a.py', line=3, function='f')]]
    """
    return [frames for _, frames in _numbered(text)]


def of_user(text: str) -> list[tuple[int, tuple[Frame, ...]]]:
    """Return each thread that runs code of the user's: its number, its calls, outermost first.

    The main thread comes first, as 0. What is ours and what that calls of Python's is left out.
    """
    found = _numbered(text)
    numbered = [(0, found[-1][1]), *found[:-1]] if found else []
    calls = [(number, tuple(calls_of_user(frames))) for number, frames in numbered]
    return [(number, frames) for number, frames in calls if frames]


def calls_of_user(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the user's calls of a thread, outermost first; `frames` has the innermost first."""
    is_inside = True
    for frame in reversed(frames):
        is_ours = is_internal(frame.file)
        is_inside = is_ours or (is_inside and is_of_python(frame.file))
        if not is_inside:
            yield frame


def _numbered(text: str) -> list[tuple[int, list[Frame]]]:
    found: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        if heading := _HEADING.fullmatch(line):
            found.append((int(heading[1], 16), []))
        elif found and (match := _FRAME.fullmatch(line)):
            file, number, function = match.groups()
            found[-1][1].append(Frame(file, int(number) if number.isdigit() else 0, function))
    return found
