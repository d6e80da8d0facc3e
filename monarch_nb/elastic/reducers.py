"""How `DistributedDataParallel` puts gradients into buckets, kept the same over a recovery.

Gloo adds up an element in an order that depends on where it stands in its bucket. So ranks must
agree on the buckets, and the losses after a fault equal those without one only if they are what
they would have been. DDP begins with one bucket and chooses others before its second step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

Layout = list[list[int]]
"""The numbers of the parameters in each bucket, in the order in which buckets are sent."""
_ASSIGN: Final = "_compute_bucket_assignment_by_size"
_HOOK: Final = "_register_comm_hook"


class _WithoutMemory(TorchDispatchMode):
    """Has tensors be made that have no memory: buckets are asked for with gradients of zeros."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return func(*args, **{**(kwargs or {}), "device": torch.device("meta")})


def replicated(modules: dict[str, torch.nn.Module]) -> list[DistributedDataParallel]:
    """Return all of these, and inside of them."""
    found: Iterator[torch.nn.Module] = (
        inner for module in modules.values() for inner in module.modules()
    )
    return [each for each in found if isinstance(each, DistributedDataParallel)]


def layout_of(ddp: DistributedDataParallel) -> Layout:
    """Return its buckets as they are."""
    parameters, _ = _parameters(ddp)
    numbers = {id(each): number for number, each in enumerate(parameters)}
    with _WithoutMemory():  # type: ignore[no-untyped-call]  # PyTorch
        buckets: Any = ddp.reducer._get_zeros_like_grad_buckets()
    return [[numbers[id(each)] for each in bucket.parameters()] for bucket in buckets]


def renew(ddp: DistributedDataParallel, layout: Layout) -> None:
    """Begin anew with these buckets: what an interrupted backward pass has left is forgotten."""
    ddp._remove_autograd_hooks()
    parameters, sparse = _parameters(ddp)
    original = getattr(dist, _ASSIGN)

    def given(*asked: Any) -> tuple[Layout, list[int]]:
        _, limits = original(*asked)
        return list(reversed(layout)), [limits[0]] * len(layout)

    with mock.patch.object(dist, _ASSIGN, given):
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    for hook, state in ddp._comm_hooks:
        getattr(dist, _HOOK)(ddp.reducer, state, hook)


def _parameters(ddp: DistributedDataParallel) -> tuple[list[torch.nn.Parameter], list[bool]]:
    found: tuple[list[torch.nn.Parameter], list[bool]] = ddp._build_params_for_reducer()
    return found
