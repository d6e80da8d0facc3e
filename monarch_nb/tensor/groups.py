"""The process groups of a rank, as functions of templates need them.

Rule: which ranks work together follows from the shape of a mesh, so nobody is asked. A group is
made by its members at its first use, and again after a heal; how is the rank's business.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh

from monarch_nb.actors import runtime_access
from monarch_nb.core.shape import Shape
from monarch_nb.tensor import attention as _attention  # noqa: F401  its rules
from monarch_nb.tensor.interpreter import here

# it advises to flatten axes that a program names apart on purpose
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
# on each rank it says that gloo has no alltoall, which nobody can change
logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)

_meshes: Final[dict[Any, tuple[list[Any], DeviceMesh]]] = {}


def group_of(members: Sequence[int]) -> Any:
    """The `ProcessGroup` of these ranks, of which this is one."""
    return runtime_access.runtime().group_of(members)


def neighbours(shape: Shape, axes: Sequence[str], rank: int) -> tuple[int, ...]:
    """The ranks that differ from this one in these coordinates only, in their order."""
    mine = shape.coordinates(rank)
    others = [label for label in shape.labels if label not in axes]
    return tuple(
        each
        for each in shape.ranks()
        if all(shape.coordinates(each)[label] == mine[label] for label in others)
    )


def device_mesh_of(shape: Shape, device: str) -> DeviceMesh:
    """PyTorch's word for a mesh of this shape, with its axes."""
    lines = [neighbours(shape, (label,), here.worker.rank) for label in shape.labels]
    groups = [group_of(line) for line in lines]
    key = (*shape.labels, *shape.ndslice.sizes, *shape.ranks(), device)
    known, found = _meshes.get(key, ([], None))
    if found is None or any(a is not b for a, b in zip(known, groups, strict=True)):
        ranks = torch.tensor(shape.ranks()).reshape(tuple(shape.ndslice.sizes))
        found = DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0],
            device,
            mesh=ranks,
            mesh_dim_names=tuple(shape.labels),
        )
        _meshes[key] = (groups, found)
    return found
