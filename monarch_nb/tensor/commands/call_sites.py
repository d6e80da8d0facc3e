"""Lines of the controller: which of the user's issued an operation.

Rule: looked up with each operation, so it is a walk over frames with one look into a table each.
Frames of torch and of ours are not the user's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

import torch

from monarch_nb.process import remote_errors

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120  compared with text
_OURS: Final = str(Path(__file__).parents[2]) + os.sep
_LIMIT: Final = 100_000


class CallSite(NamedTuple):
    """A line: `name` is that of the function."""

    filename: str
    lineno: int
    name: str

    def words(self) -> str:
        """Write it for people: `Cell In[3], line 2, in step: y = x @ w`."""
        place, text = remote_errors.place(self.filename, self.lineno)
        function = "" if self.name == "<module>" else f", in {self.name}"
        return f"{place}{function}" + (f": {text}" if text else "")


class CallSites:
    """All lines that have issued anything, numbered."""

    def __init__(self) -> None:
        self._is_user: dict[CodeType, bool] = {}
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._sites: list[CallSite] = []
        self._lock = threading.Lock()

    def current(self) -> int:
        frame, is_user = sys._getframe(2), self._is_user
        while True:
            code = frame.f_code
            known = is_user.get(code)
            if known is None:
                known = self._look(code)
            if known:
                break
            above = frame.f_back
            if above is None:
                break
            frame = above
        key = (code, frame.f_lasti)
        number = self._numbers.get(key)
        if number is None:
            number = self._add(key, CallSite(code.co_filename, frame.f_lineno or 0, code.co_name))
        return number

    def of(self, number: int) -> CallSite:
        return self._sites[number]

    def _look(self, code: CodeType) -> bool:
        name = code.co_filename
        ours = name.startswith((_TORCH, _OURS, "<frozen")) or name == contextlib.__file__
        if len(self._is_user) > _LIMIT:
            self._is_user.clear()
        self._is_user[code] = not ours
        return not ours

    def _add(self, key: tuple[CodeType, int], site: CallSite) -> int:
        with self._lock:
            if len(self._numbers) > _LIMIT:
                self._numbers.clear()
            self._sites.append(site)
            number = self._numbers[key] = len(self._sites) - 1
            return number


call_sites: Final = CallSites()
