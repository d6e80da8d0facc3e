"""Tracebacks of ranks in the colours that IPython gives those of the controller.

Rule of the file: text in, the same text with ANSI colours out; a front end has its own shades of
them, on light and on dark.
"""

from __future__ import annotations

import re
from typing import Final

_RED: Final = "31"
_GREEN: Final = "32"
_CYAN: Final = "36"
_BRIGHT: Final = "1;"

_PLACE = re.compile(
    r'(?P<indent>[ |]*)(?P<file>File ".*?"|Cell In\[\d+\]), line (?P<line>\d+)'
    r"(?:, in (?P<function>.*))?"
)
_CARETS = re.compile(r"(?P<indent>[ |]*)(?P<carets>\^+)")
_RAISED = re.compile(
    r"(?P<indent>(?: +\| )*)(?P<who>ranks? \d[^:]*: )?"
    r"(?P<name>(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Group))"
    r"(?P<rest>:.*|, \d+ different messages|)"
)


def coloured(line: str) -> str:
    """Return a line of a traceback with colours, or any other line as it is.

    Example:
        >>> coloured("ValueError: bad")
        '\\x1b[31mValueError\\x1b[0m: bad'
    """
    if found := _PLACE.fullmatch(line):
        inside = found["function"]
        return (
            f"{found['indent']}{_in(_GREEN, found['file'])}, line "
            f"{_in(_BRIGHT + _GREEN, found['line'])}"
            f"{', in ' + _in(_CYAN, inside) if inside else ''}"
        )
    if found := _CARETS.fullmatch(line):
        return f"{found['indent']}{_in(_BRIGHT + _RED, found['carets'])}"
    if found := _RAISED.fullmatch(line):
        who = _in("1", found["who"]) if found["who"] else ""
        return f"{found['indent']}{who}{_in(_RED, found['name'])}{found['rest']}"
    return line


def _in(colour: str, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"
