"""Names that occur in code: what can be completed when no rank can be asked, or the code has not
run yet.

Rule of the file: code is read as far as it can be, never run, and not before somebody asks: no cell
waits for it.
"""

from __future__ import annotations

import io
import keyword
import re
import threading
import tokenize
from collections import deque
from collections.abc import Iterator
from typing import Final

MAX_NAMES: Final = 5_000
MAX_UNREAD: Final = 256

_TOKEN: Final = re.compile(r"((?:[^\W\d]\w*\.)*)((?:[^\W\d]\w*)?)\Z")
_NO_NAME: Final = re.compile(r"\s*(?:[%!]|import\b|from\b)")
_NOT_AFTER: Final = ("'", '"', "/", "\\", "%", ".", ")", "]")


class SeenNames:
    """Names by what stands before their dot: `model.train` is `train` of `model`. Any thread."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], None] = {}
        self._unread: deque[str] = deque()
        self._reading = threading.Lock()

    def learn(self, code: str) -> None:
        self._unread.append(code)
        if len(self._unread) > MAX_UNREAD:
            self._read()

    def of(self, owner: str) -> list[str]:
        """Return names that occurred behind `owner.`, or by themselves, the latest first."""
        self._read()
        return [name for of, name in reversed(list(self._of)) if of == owner]

    def _read(self) -> None:
        with self._reading:
            while self._unread:
                for owner, name in _names(self._unread.popleft()):
                    self._of.pop((owner, name), None)
                    self._of[owner, name] = None
            for old in list(self._of)[:-MAX_NAMES]:
                del self._of[old]


def token(code: str, cursor: int) -> tuple[str, str] | None:
    """Return the owner and the begin of the name that is typed; None where no name can be: an
    import, a path.
    """
    before = code[:cursor]
    match = _TOKEN.search(before)
    if match is None or _NO_NAME.match(before[before.rfind("\n") + 1 :]):
        return None
    if before[: match.start()].endswith(_NOT_AFTER):
        return None
    return match[1][:-1], match[2]


def without_token(code: str, cursor: int) -> str:
    """Return the code without the name that is being typed: it is no name yet."""
    match = _TOKEN.search(code[:cursor])
    return code[: match.start() if match else cursor] + code[cursor:]


def _names(code: str) -> Iterator[tuple[str, str]]:
    owner, last = "", ""
    for kind, text in _tokens(code):
        if kind == tokenize.NAME and not keyword.iskeyword(text):
            if last != ".":
                owner = ""
            if last != "." or owner:
                yield owner, text
                owner = f"{owner}.{text}" if owner else text
        elif text != ".":
            owner = ""
        last = text


def _tokens(code: str) -> Iterator[tuple[int, str]]:
    try:
        for found in tokenize.generate_tokens(io.StringIO(code).readline):
            yield found.type, found.string
    except (tokenize.TokenError, SyntaxError):  # not finished, or IPython's own syntax
        return
