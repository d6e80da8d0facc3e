"""Lines of output as a person reads them: without terminal codes, and how serious they are.

That something was written to stderr says nothing: progress bars and notes go there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from monarch_nb.core.errors.records import clip

MAX_LINE: Final = 10_000  # characters

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline
_ESCAPE: Final = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # a title, a link
    r"|[\x1b\x9b]\[?[0-?]*[ -/]*[@-~]?"  # colours, cursor
)
_WORD: Final = re.compile(
    r"[\s\[(<]*"
    r"(?:\d[\d:.,/TZ+-]*[\s\])|-]+){0,3}"  # a date, a time
    r"[\[(<|-]?\s*"
    r"(?:[\w.]+\s*(?:[-|:]|\])\s*\[?)?"  # the name of a logger
    r"(WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b"
)
_WORDS: Final = ("WARN", "ERROR", "CRITICAL", "FATAL")  # quicker than the expression
_WARNED: Final = re.compile(r"\S.*?:\d+: \w*Warning: ")
_TRACEBACK: Final = "Traceback (most recent call last)"
_FATAL: Final = "Fatal Python error: "


def plain_lines(text: str) -> list[str]:
    """Return the lines of `text` without terminal codes; a newline at its end ends the last.

    Of a line that was overwritten, by carriage returns, the last state.

    Example:
        >>> plain_lines("5 %\\r10 %\\n\\x1b[31mred\\x1b[0m\\n")
        ['10 %', 'red']
    """
    lines = text.removesuffix("\n").split("\n")
    if _CONTROL.search(text):
        lines = [_plain(line) for line in lines]
    is_short = text.isascii() and len(max(lines, key=len)) <= MAX_LINE
    return lines if is_short else [clip(line, MAX_LINE) for line in lines]


def _plain(line: str) -> str:
    last = line.rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", _ESCAPE.sub("", last))


def levels(lines: list[str]) -> Iterator[str]:
    """Yield "", "warning" or "error" for each line; a traceback in one piece is an error.

    Example:
        >>> list(levels(["WARNING:root:slow", "12:00:03 ERROR lost", "errors: 0"]))
        ['warning', 'error', '']
    """
    in_traceback = False
    for line in lines:
        if _TRACEBACK in line and line.lstrip().startswith(_TRACEBACK):
            in_traceback = True
        elif in_traceback and not line.startswith((" ", "\t")):
            in_traceback = False
            yield "error"  # the last line: what was raised
            continue
        yield "error" if in_traceback else _level(line)


def _level(line: str) -> str:
    if any(word in line for word in _WORDS) and (found := _WORD.match(line)):
        return "warning" if found[1].startswith("WARN") else "error"
    if line.startswith(_FATAL):
        return "error"
    return "warning" if "Warning: " in line and _WARNED.match(line) else ""
