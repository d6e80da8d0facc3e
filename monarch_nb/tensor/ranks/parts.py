"""A rank's part of a tensor that is cut over the ranks of a mesh: PyTorch's `DTensor`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import Placement

from monarch_nb.core.shape.extent import Shape
from monarch_nb.meshes import process_groups
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


# Attention on CPUs, cut over ranks: batches and heads know nothing of one another, so a cut along
# either stays; a cut along anything else is undone first. PyTorch has such rules for the attention
# of GPUs; torch 2.13 has none for what `scaled_dot_product_attention` calls on CPUs.

_FORWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_CUTS: Final = (Replicate(), Shard(0), Shard(1))
"""Not at all, along the batch, along the heads."""

Rules = list[tuple[Sequence[Placement], Sequence[Placement]]]


def _forward(*_: object, attn_mask: DTensorSpec | None = None, **__: object) -> Rules:
    # The result and its sums; of query, key, value and the mask
    whole: list[Placement] = [] if attn_mask is None else [Replicate()]
    return [([cut] * 2, [cut] * 3 + whole) for cut in _cuts(attn_mask)]


def _backward(*_: object, attn_mask: DTensorSpec | None = None, **__: object) -> Rules:
    # Three gradients; of the result's gradient, query, key, value, result, sums and the mask
    whole: list[Placement] = [] if attn_mask is None else [Replicate()]
    return [([cut] * 3, [cut] * 6 + whole) for cut in _cuts(attn_mask)]


def _cuts(mask: DTensorSpec | None) -> list[Placement]:
    # those that leave a mask whole: named arguments of operations cannot be cut on the way
    if mask is None:
        return list(_CUTS)
    if not mask.is_replicated():
        raise NotImplementedError(
            "an attn_mask that is cut over ranks: give each rank all of it, distribute(mask, mesh)"
        )
    sizes = (1,) * (4 - len(mask.shape)) + tuple(mask.shape)
    return [cut for cut in _CUTS if not isinstance(cut, Shard) or sizes[cut.dim] == 1]


for _operation, _rules in ((_FORWARD, _forward), (_BACKWARD, _backward)):
    register_sharding(_operation)(_rules)
    # what was found for one mask says nothing of another
    DTensor._op_dispatcher.sharding_propagator.op_to_schema_info[_operation] = RuntimeSchemaInfo(
        static_kwargkey=["attn_mask"], needs_pytree=True
    )
