"""The process groups of a rank, as functions of templates need them.

Rules: which ranks work together follows from the shape of a mesh, so nobody is asked; a group is
made by its members at its first use, and again after a heal. Each stream has its own: what another
stream, or the user, does at the same time with the same ranks must not mix with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from monarch_nb.core.shape.extent import Shape
from monarch_nb.meshes import process_groups
from monarch_nb.meshes.process_groups import Membership, neighbours
from monarch_nb.process import current
from monarch_nb.tensor.ranks import attention as _attention  # noqa: F401  its rules
from monarch_nb.tensor.ranks.interpreter import here

__all__ = ["device_mesh_of", "group_of", "neighbours"]

# on each rank it says that gloo has no alltoall, which nobody can change
logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)


def group_of(members: Sequence[int]) -> Any:
    """The `ProcessGroup` of these ranks, of which this is one."""
    return current.part(Membership).group_of(members, _owner(), None)


def device_mesh_of(shape: Shape, device: str) -> DeviceMesh:
    """PyTorch's word for a mesh of this shape, with its axes."""
    rank = here.worker.rank
    found: DeviceMesh = process_groups.device_mesh_of(shape, rank, device, _owner())
    return found


def _owner() -> str:
    return f"tensors-{here.worker.stream}"
