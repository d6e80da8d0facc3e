"""A rank's part of a tensor that is cut over the ranks of a mesh: PyTorch's `DTensor`."""

from __future__ import annotations

import logging

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from monarch_nb.core.shape.extent import Shape
from monarch_nb.meshes import process_groups
from monarch_nb.tensor.ranks import attention as _attention  # noqa: F401  its rules
from monarch_nb.tensor.ranks.interpreter import here, own_copy

# on each rank it says that gloo has no alltoall, which nobody can change
logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)


def part(
    value: torch.Tensor, device: str, shape: Shape, cuts: tuple[int | None, ...]
) -> torch.Tensor:
    placements = [Replicate() if cut is None else Shard(cut) for cut in cuts]
    mesh = process_groups.device_mesh_of(shape, here.worker.rank, device, here.worker.owner)
    found = distribute_tensor(value, mesh, placements, src_data_rank=None)
    own = own_copy(found.to_local(), device)
    return DTensor.from_local(
        own, mesh, placements, run_check=False, shape=found.shape, stride=found.stride()
    )


def like(gradient: DTensor, parameter: DTensor) -> DTensor:
    return gradient.redistribute(parameter.device_mesh, parameter.placements)
