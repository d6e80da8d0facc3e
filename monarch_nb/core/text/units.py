"""Numbers in words."""

from __future__ import annotations

from collections.abc import Mapping, Sized


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return `hosts=2 gpus=8`."""
    return " ".join(f"{label}={size}" for label, size in sizes.items())


def count(number: int, noun: str) -> str:
    """Return `1 rank`, `4 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(ranks: Sized) -> str:
    """Return `is` or `are`."""
    return "is" if len(ranks) == 1 else "are"


def duration(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
