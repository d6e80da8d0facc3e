"""A snapshot of the meshes in words. Knows nothing of where it is shown."""

from __future__ import annotations

from collections import Counter
from typing import Any


def summary(snapshot: Any) -> str:
    """`mesh0: 4 ranks, 3 idle, 1 busy; data: ...` in one line."""
    return "; ".join(mesh_line(mesh) for mesh in snapshot.meshes) or "no mesh is up"


def mesh_line(mesh: Any) -> str:
    """`mesh0: 4 ranks, 3 idle, 1 busy`."""
    verdicts = Counter(rank.verdict for rank in mesh.ranks)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    return f"{mesh.name}: {count(len(mesh.ranks), 'rank')}, {counts}"


def sizes_text(labels: Any, sizes: Any) -> str:
    """`hosts=2 gpus=8`."""
    return " ".join(f"{label}={size}" for label, size in zip(labels, sizes, strict=True))


def count(number: int, noun: str) -> str:
    """`1 rank`, `4 ranks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
