"""Checks of the fields of a message: a value of the right kind and size, or `Wrong`.

Rule of the file: whatever JSON holds, a check returns a value or raises `Wrong` with what would
have been right; no text of the sender's is repeated beyond a few characters.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Collection
from typing import Any, Final

MAX_NAME: Final = 200  # characters
MAX_CLIENT: Final = 64
MAX_RUNS: Final = 20_000
MAX_RANKS: Final = 100_000
MAX_AXES: Final = 8
MAX_NUMBER: Final = 2**53 - 1  # what a browser can count to
MAX_PATTERN: Final = 200
_SHOWN: Final = 40
_RUN: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")

Check = Callable[[Any], Any]


class Wrong(Exception):
    """What a field should be; completed by its name."""


def text(limit: int = MAX_NAME, *, empty: bool = False) -> Check:
    """A text of so many characters at most."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > limit or not (value or empty):
            raise Wrong(f"must be a text of {limit} characters at most, not {shown(value)}")
        return value

    return check


def number(first: int, last: int = MAX_NUMBER) -> Check:
    """A whole number of a range."""

    def check(value: Any) -> int:
        if type(value) is not int or not first <= value <= last:
            raise Wrong(f"must be a whole number from {first} to {last}, not {shown(value)}")
        return value

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Wrong(f"must be true or false, not {shown(value)}")
    return value


def choice(*words: str) -> Check:
    """One of these words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise Wrong(f"must be one of {_listed(words)}, not {shown(value)}")
        return value

    return check


def words(known: Collection[str]) -> Check:
    """A list of some of these words."""

    def check(value: Any) -> frozenset[str]:
        if not isinstance(value, list) or len(value) > len(known):
            raise Wrong(f"must be a list of some of {_listed(known)}, not {shown(value)}")
        return frozenset(choice(*known)(each) for each in value)

    return check


def optional(check: Check) -> Check:
    """The same, or null."""
    return lambda value: None if value is None else check(value)


def either(first: Check, second: Check) -> Check:
    """What one of them takes."""

    def check(value: Any) -> Any:
        try:
            return first(value)
        except Wrong:
            return second(value)

    return check


def ranks(value: Any) -> tuple[int, ...]:
    """`0-3,7`, as a tuple in order."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_RUNS:
        raise Wrong(f"must be ranks such as '0-3,7', not {shown(value)}")
    found: set[int] = set()
    for piece in value.split(","):
        match = _RUN.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_RANKS:
            raise Wrong(f"must be ranks such as '0-3,7', not {shown(value)}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def sizes(value: Any) -> dict[str, int]:
    """The axes of a mesh that is to be made."""
    if not isinstance(value, dict) or not 0 < len(value) <= MAX_AXES:
        raise Wrong(f"must be axes with their sizes, such as gpus: 4, not {shown(value)}")
    return {_axis(label): number(1, MAX_RANKS)(size) for label, size in value.items()}


def new_name(value: Any) -> str:
    """A name that can be a variable; empty: any will do."""
    name: str = text(empty=True)(value)
    if name and (not name.isidentifier() or keyword.iskeyword(name) or hasattr(builtins, name)):
        raise Wrong(f"must be a word like mesh0 that is not Python's own, not {shown(name)}")
    return name


def pattern(value: Any) -> str:
    """A regular expression that is found or not in a moment, or an empty text.

    The search cannot be stopped and holds the interpreter, so what could take for ever is refused:
    a repetition of a group, more than three repetitions.
    """
    written: str = text(MAX_PATTERN, empty=True)(value)
    try:
        re.compile(written)
    except (re.error, OverflowError, RecursionError) as error:
        raise Wrong(f"must be a regular expression: {error}") from None
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", written)
    if re.search(r"\)\s*[*+{]", plain) or len(re.findall(r"[*+{]", plain)) > 3:
        raise Wrong("may repeat single characters, three times at most: the search could hang")
    return written


def shown(value: Any) -> str:
    """A value as a person is told of it."""
    if isinstance(value, str):
        return ascii(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "that number"
    kinds: dict[type, str] = {list: "that list", dict: "that object"}
    return kinds.get(type(value), "that")


def _axis(label: Any) -> str:
    if not isinstance(label, str) or len(label) > MAX_NAME or not label.isidentifier():
        raise Wrong(f"must have axes with names like gpus, not {shown(label)}")
    return label


def _listed(known: Collection[str]) -> str:
    return ", ".join(word or "''" for word in known)
