"""What ranks wrote, made fit for JSON: short enough, and without what cannot be encoded."""

from __future__ import annotations

import math
from typing import Final

Json = dict[str, object]
"""An object of a message."""

MAX_TEXT: Final = 10_000
MAX_WHAT: Final = 200
MAX_HEADLINE: Final = 300


def plain(text: object, limit: int = MAX_TEXT) -> str:
    """Return the text, cut to so many characters, with what is no character replaced.

    Example:
        >>> plain("a\\ud800b"), plain("abcdef", 4)
        ('a?b', 'abc…')
    """
    found = text if isinstance(text, str) else str(text)
    if len(found) > limit:
        found = f"{found[: limit - 1]}…"
    return found if found.isascii() else found.encode("utf-8", "replace").decode()


def number(value: float | None) -> float | None:
    """Return the number; None for what JSON has no number for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mebibytes(size: int | None) -> int | None:
    return None if size is None else size >> 20
