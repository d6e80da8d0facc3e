"""The process groups of a rank, as functions of templates need them.

Rule: which ranks work together follows from the shape of a mesh, so nobody is asked. A group is
made by its members at its first use, and again after a heal; how is the rank's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from monarch_nb.actors import device_meshes, runtime_access
from monarch_nb.actors.axis_group import neighbours
from monarch_nb.core.shape import Shape
from monarch_nb.tensor.interpreter import here

__all__ = ["device_mesh_of", "group_of", "neighbours"]


def group_of(members: Sequence[int]) -> Any:
    """The `ProcessGroup` of these ranks, of which this is one."""
    return runtime_access.runtime().group_of(members)


def device_mesh_of(shape: Shape, device: str) -> DeviceMesh:
    """PyTorch's word for a mesh of this shape, with its axes."""
    found: DeviceMesh = device_meshes.of(shape, here.worker.rank, device)
    return found
