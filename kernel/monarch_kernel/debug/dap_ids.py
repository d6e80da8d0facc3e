"""Numbers of threads, frames and variables of several ranks, as one debugger's.

Each rank numbers its own; a front end wants numbers that mean one thing. JupyterLab sends thread 1
when it knows of none, so that is nobody's number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

_SHIFT: Final = 20
_KEYS: Final = ("variablesReference", "frameId")


def thread_number(rank: int, thread: int) -> int:
    """What a front end calls a thread of a rank."""
    return (rank + 1) << _SHIFT | thread


def thread_of(number: object) -> tuple[int, int] | None:
    """The rank and its thread; None for a number that is nobody's."""
    if not isinstance(number, int) or number < 1 << _SHIFT:
        return None
    return (number >> _SHIFT) - 1, number & ((1 << _SHIFT) - 1)


class Ids:
    """Of frames and variables, which live as long as a rank is stopped."""

    def __init__(self) -> None:
        self._next = itertools.count(2)
        self._theirs: dict[int, tuple[int, int]] = {}
        self._ours: dict[tuple[int, int], int] = {}

    def number(self, rank: int, theirs: int) -> int:
        """What a front end calls it; 0 stays 0, which means nothing."""
        if not theirs:
            return 0
        key = rank, theirs
        if key not in self._ours:
            ours = self._ours[key] = next(self._next)
            self._theirs[ours] = key
        return self._ours[key]

    def of(self, number: object) -> tuple[int, int] | None:
        """The rank and its own number; None for one that is not valid any more."""
        return self._theirs.get(number) if isinstance(number, int) else None

    def forget(self, rank: int) -> None:
        """A rank goes on: what was said of it is over."""
        for key in [key for key in self._ours if key[0] == rank]:
            del self._theirs[self._ours.pop(key)]

    def outward(self, rank: int, body: Any) -> Any:
        """What a rank has said, with our numbers."""
        if isinstance(body, list):
            return [self.outward(rank, each) for each in body]
        if not isinstance(body, dict):
            return body
        said = {key: self._said(rank, key, value) for key, value in body.items()}
        if "line" in said and "column" in said and "source" in said and "id" in said:  # a frame
            said["id"] = self.number(rank, said["id"])
        return said

    def _said(self, rank: int, key: str, value: Any) -> Any:
        translate: Callable[[int, int], int] | None = None
        if key in _KEYS:
            translate = self.number
        elif key == "threadId":
            translate = thread_number
        if translate is not None and isinstance(value, int):
            return translate(rank, value)
        return self.outward(rank, value)
