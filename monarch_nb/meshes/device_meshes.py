"""A mesh as PyTorch's `DeviceMesh`, with its axes, made of the groups of these.

Nothing is initialised again: each axis has its group of neighbours, made at its first use. After a
heal or a regroup the groups are others, so the next one asked for is another object.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final

from monarch_nb.core.shape.extent import Shape
from monarch_nb.meshes.process_groups import neighbours
from monarch_nb.process import current

_meshes: Final[dict[Any, tuple[list[Any], Any]]] = {}


def of(shape: Shape, rank: int, device: str, owner: str = "") -> Any:
    """The `DeviceMesh` of this shape, on a device of this type (`cpu`, `cuda`), with the groups of
    an owner.

    Waits the first time for the other members, of one axis after the other. Raises `ValueError`
    for a shape without axes.
    """
    if not shape.labels:
        raise ValueError(
            f"rank {rank} alone has no axes, a DeviceMesh needs one: keep the axis, as in "
            "mesh.slice(gpus=slice(0, 1))"
        )
    # it advises to flatten axes that a program names apart on purpose
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    group_of = current.runtime().group_of
    groups = [group_of(neighbours(shape, (label,), rank), owner, None) for label in shape.labels]
    key = (*shape.labels, *shape.ndslice.sizes, *shape.ranks(), device, owner)
    known, found = _meshes.get(key, ([], None))
    if found is None or any(a is not b for a, b in zip(known, groups, strict=True)):
        found = _make(shape, groups, device)
        _meshes[key] = (groups, found)
    return found


def _make(shape: Shape, groups: list[Any], device: str) -> Any:
    torch: Any = importlib.import_module("torch")
    module: Any = importlib.import_module("torch.distributed.device_mesh")
    return module.DeviceMesh.from_group(
        groups if len(groups) > 1 else groups[0],
        device,
        mesh=torch.tensor(shape.ranks()).reshape(tuple(shape.ndslice.sizes)),
        mesh_dim_names=tuple(shape.labels),
    )
