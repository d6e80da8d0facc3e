"""Durations as Monarch writes them: `30s`, `1h 30m`, `500ms`."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)")
_SECONDS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hr": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_NANOSECONDS: Final = {
    "day": 86400 * 10**9,
    "h": 3600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}


def seconds(text: str) -> float:
    """Read a duration, in seconds. Raises `TypeError` for what is none, as Monarch does."""
    total, at = 0.0, 0
    while found := _PART.match(text, at):
        unit = found[2] if found[2] in _SECONDS else found[2].removesuffix("s")
        if unit not in _SECONDS:
            break
        total, at = total + float(found[1]) * _SECONDS[unit], found.end()
    if not at or text[at:].strip():
        raise TypeError(f"Invalid duration format {text!r}: write 30s, 5m, 1h 30m or 500ms")
    return total


def text(duration_s: float) -> str:
    """Write it: largest units first."""
    left = round(duration_s * 1e9)
    parts = []
    for unit, size in _NANOSECONDS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}{'s' if unit == 'day' and count > 1 else ''}")
    return " ".join(parts) or "0s"
