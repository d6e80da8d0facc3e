"""One value for each rank and back: `cut` makes parts of a value, `stack` an array of the parts.

It imports nothing of what it cuts: libraries are told apart by how their values are sliced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monarch_nb.core.errors.folding import fold_outputs, rank_words


def cut(value: Any, count: int, dim: int = 0) -> list[Any]:
    """Return `count` parts in order; where it does not divide, the first ones have one more.

    Raises `TypeError` for a value without order, `ValueError` for an axis that it does not have.
    """
    size, take = _slicer(value, dim)
    least, longer = divmod(size, count)
    bounds = [i * least + min(i, longer) for i in range(count + 1)]
    return [take(bounds[i], bounds[i + 1]) for i in range(count)]


def _slicer(value: Any, dim: int) -> tuple[int, Callable[[int, int], Any]]:
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


def _checked(value: object, dim: int, count: int) -> int:
    if not -count <= dim < count:
        has = "one axis, dim=0" if count == 1 else f"{count} axes"
        raise ValueError(f"cannot cut along dim={dim}: a {type(value).__name__} here has {has}")
    return dim % count


def _place(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(start, stop))


def _dense(part: Any) -> Any:
    # without gaps, its memory can be handed over as it is
    if hasattr(part, "is_contiguous"):
        return part.contiguous()
    return part if part.flags.c_contiguous else part.copy()


def stack(name: str, values: Mapping[int, Any], sizes: tuple[int, ...]) -> Any:
    """Return the values by rank as one array; its first axes are those of a mesh of these sizes.

    Tensors become a tensor in this process's memory, everything else an array. Raises a
    `ValueError` that names the ranks, if the values differ in shape or are no numbers.
    """
    torch = sys.modules.get("torch")  # which another thread may be loading
    tensor = getattr(torch, "Tensor", ())
    if torch is not None and all(isinstance(each, tensor) for each in values.values()):
        _check_shapes(name, {rank: tuple(each.shape) for rank, each in values.items()})
        tensors = torch.stack([each.detach().cpu() for each in values.values()])
        return tensors.reshape(*sizes, *tensors.shape[1:])
    import numpy as np

    arrays = {rank: np.asarray(_local(each)) for rank, each in values.items()}
    for rank, array in arrays.items():
        if array.dtype == object:
            kind = type(values[rank]).__name__
            said = f"on rank {rank} it is no number, array or tensor but a {kind}"
            raise ValueError(f"{name} cannot be stacked: {said}")
    _check_shapes(name, {rank: array.shape for rank, array in arrays.items()})
    found = np.stack(list(arrays.values()))
    return found.reshape(*sizes, *found.shape[1:])


def _local(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value


def _check_shapes(name: str, shapes: Mapping[int, tuple[int, ...]]) -> None:
    groups = fold_outputs(shapes)
    if len(groups) > 1:
        told = "; ".join(f"{shapes[one.ranks[0]]} on {rank_words(one.ranks)}" for one in groups)
        raise ValueError(f"{name} cannot be stacked, its shapes differ: {told}")
