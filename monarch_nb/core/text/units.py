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


def size_text(size: int) -> str:
    """Return `12 B`, `3.9 KB`, `4.0 MB`, `80.0 GB`: powers of 1024."""
    if size < 1024:
        return f"{size} B"
    value = size / 1024
    for unit in ("KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
