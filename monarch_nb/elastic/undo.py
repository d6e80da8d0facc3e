"""How a state is taken back to where a step began."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule

from monarch_nb.elastic.held import Held
from monarch_nb.elastic.state import (
    State,
    batches_of,
    modules_of,
    optimizers_of,
    plain_of,
    stateful_of,
)


class Before(NamedTuple):
    """What is needed to begin a step again whose optimizers have not run."""

    held: Held
    buffers: dict[str, list[torch.Tensor]]
    dicts: dict[str, Any]
    plain: dict[str, Any]


def before(state: State, held: Held) -> Before:
    """Return where a step begins. Copies little: parameters change only in the optimizers."""
    return Before(
        held,
        {
            name: [each.detach().clone() for each in module.buffers()]
            for name, module in modules_of(state).items()
        },
        {name: copy.deepcopy(each.state_dict()) for name, each in stateful_of(state).items()},
        {name: copy.deepcopy(each) for name, each in plain_of(state).items()},
    )


def check_can_reshard(state: State) -> None:
    """Raise `RuntimeError` if sharded models could not be taken back from the midst of a step."""
    is_sharded = any(list(_sharded(module)) for module in modules_of(state).values())
    if is_sharded and not hasattr(FSDPModule, "reset_iter_state"):
        raise RuntimeError(
            "elastic: fully_shard of PyTorch "
            f"{torch.__version__} does not forget an interrupted step: use 2.13 or later"
        )


def reshard(state: State) -> None:
    """Have sharded models hold their parts again, wherever in a step they were interrupted."""
    for module in modules_of(state).values():
        for root in _sharded(module):
            root.reset_iter_state()


def _sharded(module: torch.nn.Module) -> Iterator[FSDPModule]:
    # the outermost ones in it
    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from _sharded(child)


def undo(state: State, was: Before) -> None:
    """Go back to where a step began. Its batch is kept."""
    with torch.no_grad():
        for name, module in modules_of(state).items():
            for buffer, old in zip(module.buffers(), was.buffers[name], strict=True):
                buffer.copy_(old)
    for name, each in stateful_of(state).items():
        each.load_state_dict(copy.deepcopy(was.dicts[name]))
    for name, value in was.plain.items():
        setattr(state, name, copy.deepcopy(value))
    for optimizer in optimizers_of(state).values():
        optimizer.zero_grad(set_to_none=True)
    for module in modules_of(state).values():
        module.zero_grad(set_to_none=True)
    if (batches := batches_of(state)) is not None:
        batches.again()
    was.held.randomness.restore()
