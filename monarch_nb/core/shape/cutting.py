"""A value cut into nearly equal parts, one for each rank: rows of a table, items of a list, an axis
of an array.

It imports nothing of what it cuts: libraries are told apart by how their values are sliced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def cut(value: Any, count: int, dim: int = 0) -> list[Any]:
    """`count` parts in order; where it does not divide, the first ones have one more.

    Raises `TypeError` for a value that has no order, `ValueError` for an axis that it does not
    have.
    """
    size, take = _slicer(value, dim)
    least, longer = divmod(size, count)
    bounds = [i * least + min(i, longer) for i in range(count + 1)]
    return [take(bounds[i], bounds[i + 1]) for i in range(count)]


def _slicer(value: Any, dim: int) -> tuple[int, Callable[[int, int], Any]]:
    """The length along the axis, and what takes a part of it."""
    shape = getattr(value, "shape", None)
    if hasattr(value, "iloc"):  # pandas
        axis = _checked(value, dim, len(shape or ()))
        return value.shape[axis], lambda start, stop: value.iloc[_place(axis, start, stop)]
    if callable(getattr(value, "slice", None)):  # pyarrow, polars
        _checked(value, dim, 1)
        return len(value), lambda start, stop: value.slice(start, stop - start)
    if shape is not None:  # numpy, torch
        axis = _checked(value, dim, len(shape))
        return shape[axis], lambda start, stop: _dense(value[_place(axis, start, stop)])
    if isinstance(value, Sequence):
        _checked(value, dim, 1)
        return len(value), lambda start, stop: value[start:stop]
    raise TypeError(
        f"a {type(value).__name__} cannot be cut into parts; "
        "a sequence, an array, a tensor or a table can"
    )


def _checked(value: Any, dim: int, count: int) -> int:
    if not -count <= dim < count:
        has = "one axis, dim=0" if count == 1 else f"{count} axes"
        raise ValueError(f"cannot cut along dim={dim}: a {type(value).__name__} here has {has}")
    return dim % count


def _place(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(start, stop))


def _dense(part: Any) -> Any:
    """Without gaps, so that its memory can be handed over as it is."""
    if hasattr(part, "is_contiguous"):
        return part.contiguous()
    return part if part.flags.c_contiguous else part.copy()
