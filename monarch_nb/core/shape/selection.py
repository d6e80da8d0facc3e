"""Select ranks of a mesh: `gpus=0:2`, `hosts=0 gpus=::2`, `0,2`, `0-3`, `all`, and as ipyparallel
has them `[0,2]`, `::2`, `-1`.

Rule of the file: a selection names ranks that exist or is refused; nothing is clipped. It knows
axes and numbers only. A mesh part is what the mesh's own `slice` gives; ranks that are no regular
grid are several parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from monarch_nb.core.errors.folding import rank_runs, rank_words
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.errors import MeshError

EXAMPLES = "%%mesh gpus=0:2, %%mesh 0,2, %%mesh 0-3 or %%mesh all"

_INDEX = re.compile(r"[0-9]{1,18}")  # more digits are no place anywhere
_RANGE = re.compile(r"([0-9]{,18}):([0-9]{,18})(?::([0-9]{,18}))?")
_RANKS = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_ONE_OR_SOME = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
MAX_RANK = 100_000  # a slip of the finger must not fill the memory


M = TypeVar("M", bound=MeshTrait)


class Named(Protocol):
    """A mesh with a name, and the numbers of its ranks in the whole mesh."""

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> Sequence[int]: ...


class SelectionError(MeshError, ValueError):
    """Words that select no ranks of a mesh. The text says what is wrong and what to type."""


def parts(mesh: M, words: Sequence[str]) -> list[M]:
    """Return the mesh, cut to what the words select. Raises `SelectionError`."""
    if not words or list(words) == ["all"]:
        return [mesh]
    axes = [word for word in words if "=" in word]
    if len(axes) == len(words):
        return [_by_axes(mesh, axes)]
    text = " ".join(words)
    is_list = text.startswith("[") and text.endswith("]")
    if axes or (len(words) > 1 and not is_list):
        raise SelectionError(f"{text!r} mixes several ways to select ranks. Type one: {EXAMPLES}")
    return _by_ranks(mesh, text[1:-1].replace(" ", "") if is_list else text)


def read_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of `3`, `0,2` or `0-3`, each once. Raises `SelectionError`.

    Example:
        >>> read_ranks("0,2-3")
        (0, 2, 3)
    """
    found: list[int] = []
    for piece in text.split(","):
        match = _ONE_OR_SOME.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last > MAX_RANK:
            raise SelectionError(f"cannot read {text!r}; ranks are given as 3 or 0,2 or 0-3")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def check_ranks(mesh: Named, ranks: Iterable[int]) -> None:
    """Raise `SelectionError` for ranks that the mesh does not have."""
    if missing := sorted(set(ranks) - set(mesh.ranks)):
        raise SelectionError(
            f"{mesh.name} has no {rank_words(missing)}; its ranks are {rank_runs(mesh.ranks)}"
        )


def _by_axes(mesh: M, words: Sequence[str]) -> M:
    wanted: dict[str, int | slice] = {}
    for word in words:
        label, _, text = word.partition("=")
        if label in wanted:
            raise SelectionError(f"{label} is selected twice. Type: {label}={wanted[label]}")
        if label not in mesh.sizes:
            axes = mesh._sizes_text() or "none"
            raise SelectionError(f"the mesh has no axis {label!r}; its axes are {axes}")
        wanted[label] = _place(label, text, mesh.sizes[label])
    return mesh.slice(**wanted)


def _place(label: str, text: str, size: int) -> int | slice:
    if _INDEX.fullmatch(text):
        if int(text) < size:
            return int(text)
        raise SelectionError(
            f"{label}={text} is outside the mesh: {label} goes from 0 to {size - 1}"
        )
    found = _range(text, size)
    if found is None:
        raise SelectionError(
            f"cannot read {label}={text}. Type: {label}=0 or {label}=0:2 or {label}=::2"
        )
    if not found:
        raise SelectionError(
            f"{label}={text} is empty or outside the mesh: "
            f"{label} has {size} places, {label}=0:{size}"
        )
    return slice(found.start, found.stop, found.step)


def _range(text: str, size: int) -> range | None:
    # the places of `0:4` or `::2`; empty if some are missing; None for another kind of text
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    start, stop, step = (int(group) if group else None for group in match.groups())
    first, last = start or 0, size if stop is None else stop
    return range(first, last, step or 1) if last <= size and step != 0 else range(0)


def _by_ranks(mesh: M, text: str) -> list[M]:
    present = list(mesh._ndslice)
    wanted = [rank for piece in text.split(",") for rank in _ranks(text, piece, present)]
    missing = [str(rank) for rank in wanted if rank not in present]
    first, last = present[0], present[-1]
    if missing:
        raise SelectionError(
            f"{text} is outside the mesh: no rank {', '.join(missing)} "
            f"among its {len(present)}, {first} to {last}"
        )
    if not wanted:
        raise SelectionError(
            f"{text} is empty or outside the mesh: it has {len(present)} ranks, {first} to {last}"
        )
    chosen = sorted(set(wanted))
    if chosen == sorted(present):
        return [mesh]
    return [mesh._new_with_shape(Shape(["rank"], piece)) for piece in Slice.from_list(chosen)]


def _ranks(text: str, piece: str, present: Sequence[int]) -> Iterator[int]:
    # `3`, `0-3`, `-1` (the last) or `::2` (by place)
    if _INDEX.fullmatch(piece):
        yield int(piece)
    elif (match := _RANKS.fullmatch(piece)) and int(match[1]) <= int(match[2]):
        first, last = int(match[1]), int(match[2])
        beyond = max(*present, first - 1) + 1  # one that is missing is enough to be told
        yield from range(first, min(last, beyond) + 1)
    elif (places := _range(piece, len(present))) is not None:
        yield from (present[place] for place in places)
    elif piece[:1] == "-" and _INDEX.fullmatch(piece[1:]):
        back = int(piece[1:])
        yield present[-back] if 0 < back <= len(present) else -back
    else:
        raise SelectionError(f"{text!r} selects no ranks. Type: {EXAMPLES}")
