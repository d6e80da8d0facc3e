"""How a state is taken back to where a step began."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

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
