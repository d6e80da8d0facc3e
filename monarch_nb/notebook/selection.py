"""Which ranks of a mesh a cell is for: `gpus=0:2`, `hosts=0 gpus=::2`, `0,2`, `0-3`, `all`.

Rule of the file: a selection names ranks that exist or is refused; nothing is clipped. It knows
axes and numbers only. A mesh part is what the mesh's own `slice` gives; ranks that are no regular
grid are several parts.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from monarch_nb.core.shape import Shape, Slice
from monarch_nb.notebook import options
from monarch_nb.notebook.problems import MagicError

EXAMPLES = "%%mesh gpus=0:2, %%mesh 0,2, %%mesh 0-3 or %%mesh all"

_INDEX = re.compile(r"[0-9]+")
_RANGE = re.compile(r"([0-9]*):([0-9]*)(?::([0-9]+))?")


def parts(mesh: Any, words: Sequence[str]) -> list[Any]:
    """The mesh, cut to what the words select. Raises `MagicError`."""
    if not words or list(words) == ["all"]:
        return [mesh]
    axes = [word for word in words if "=" in word]
    if len(axes) == len(words):
        return [_by_axes(mesh, axes)]
    if axes or len(words) > 1:
        raise MagicError(
            f"{' '.join(words)!r} mixes several ways to select ranks. Type one: {EXAMPLES}"
        )
    return _by_ranks(mesh, words[0])


def _by_axes(mesh: Any, words: Sequence[str]) -> Any:
    wanted: dict[str, int | slice] = {}
    for word in words:
        label, _, text = word.partition("=")
        if label in wanted:
            raise MagicError(f"{label} is selected twice. Type: {label}={wanted[label]}")
        if label not in mesh.sizes:
            raise MagicError(f"the mesh has no axis {label!r}; its axes are {_sizes(mesh)}")
        wanted[label] = _place(label, text, mesh.sizes[label])
    return mesh.slice(**wanted)


def _place(label: str, text: str, size: int) -> int | slice:
    if _INDEX.fullmatch(text):
        if int(text) < size:
            return int(text)
        raise MagicError(f"{label}={text} is outside the mesh: {label} goes from 0 to {size - 1}")
    match = _RANGE.fullmatch(text)
    if match is None:
        raise MagicError(
            f"cannot read {label}={text}. Type: {label}=0 or {label}=0:2 or {label}=::2"
        )
    start, stop, step = (int(group) if group else None for group in match.groups())
    first, last = start or 0, size if stop is None else stop
    if first >= last or last > size or step == 0:
        raise MagicError(
            f"{label}={text} is empty or outside the mesh: "
            f"{label} has {size} places, {label}=0:{size}"
        )
    return slice(first, last, step)


def _by_ranks(mesh: Any, text: str) -> list[Any]:
    try:
        wanted = options.ranks(text)
    except argparse.ArgumentTypeError:
        raise MagicError(_no_selection(text)) from None
    present = list(mesh._ndslice)
    missing = [str(rank) for rank in wanted if rank not in present]
    if missing or not wanted:
        raise MagicError(
            f"{text} is outside the mesh: no rank {', '.join(missing)} "
            f"among its {len(present)}, {present[0]} to {present[-1]}"
        )
    if sorted(wanted) == sorted(present):
        return [mesh]
    pieces = Slice.from_list(sorted(wanted))
    return [mesh._new_with_shape(Shape(["rank"], piece)) for piece in pieces]


def _no_selection(text: str) -> str:
    if text in options.COMMANDS:
        return f"{text!r} is a command of the line magic. Type: %mesh {text} (one %)"
    return f"{text!r} selects no ranks. Type: {EXAMPLES}"


def _sizes(mesh: Any) -> str:
    return ", ".join(f"{label}={size}" for label, size in mesh.sizes.items()) or "none"
