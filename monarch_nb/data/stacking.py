"""Values of ranks as one array: the first axes are those of the mesh.

Rule: tensors become a tensor in this process's memory, everything else an array. What does not fit
is refused in one line that names the ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from monarch_nb.core.errors.folding import fold_outputs, rank_words


def stack(name: str, values: Mapping[int, Any], sizes: tuple[int, ...]) -> Any:
    """The values by rank, in the order of a mesh of these sizes. `ValueError` if they differ in
    shape, or are no numbers."""
    torch = sys.modules.get("torch")
    if torch is not None and all(isinstance(each, torch.Tensor) for each in values.values()):
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
    """A tensor where other ranks have none."""
    return value.detach().cpu() if hasattr(value, "detach") else value


def _check_shapes(name: str, shapes: Mapping[int, tuple[int, ...]]) -> None:
    groups = fold_outputs(shapes)
    if len(groups) > 1:
        told = "; ".join(f"{shapes[one.ranks[0]]} on {rank_words(one.ranks)}" for one in groups)
        raise ValueError(f"{name} cannot be stacked, its shapes differ: {told}")
