"""All of a state as tensors, and what they are: how it gets into another process, and is kept.

Tensors are those of the process itself: parameters, buffers, what optimizers keep of each
parameter. Everything else travels as one description of them.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from monarch_nb.elastic.reducers import Layout
from monarch_nb.elastic.state import State, modules_of, optimizers_of, plain_of, stateful_of


class _TensorAt(NamedTuple):
    """Stands for a tensor in what an optimizer keeps."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str


class Description(NamedTuple):
    """Everything of a state but its tensors."""

    step: int
    taken: int
    """Steps since the loop began."""
    optimizers: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]
    """By name: of each parameter what is kept of it; the groups, without their parameters."""
    dicts: dict[str, Any]
    plain: dict[str, Any]
    layouts: list[Layout]
    """Of each `DistributedDataParallel`, as it was when the step began."""
    settles: bool
    """They are chosen anew in the second step."""


class Contents(NamedTuple):
    """A description, and its tensors in order."""

    description: Description
    tensors: list[torch.Tensor]


def contents(state: State, taken: int, layouts: list[Layout], *, settles: bool) -> Contents:
    """Return all of it, after so many steps; the rest as in `Description`. Tensors are the living
    ones."""
    tensors = _of_modules(state)
    optimizers = {}
    for name, optimizer in optimizers_of(state).items():
        kept, found = _kept(optimizer)
        tensors += found
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        optimizers[name] = kept, copy.deepcopy(groups)
    description = Description(
        step=state.step,
        taken=taken,
        optimizers=optimizers,
        dicts={name: copy.deepcopy(each.state_dict()) for name, each in stateful_of(state).items()},
        plain={name: copy.deepcopy(each) for name, each in plain_of(state).items()},
        layouts=layouts,
        settles=settles,
    )
    return Contents(description, tensors)


def copied(found: Contents) -> Contents:
    """Return the same, which nobody changes."""
    return found._replace(tensors=[each.detach().clone() for each in found.tensors])


def describe(state: State, description: Description) -> list[torch.Tensor]:
    """Have a state be what is described, and return the tensors that are to be filled, in the order
    of `Contents.tensors`."""
    tensors = _of_modules(state)
    for name, optimizer in optimizers_of(state).items():
        kept, groups = description.optimizers[name]
        tensors += _refill(optimizer, kept)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(copy.deepcopy(values))
    for name, each in stateful_of(state).items():
        each.load_state_dict(copy.deepcopy(description.dicts[name]))
    for name, value in description.plain.items():
        setattr(state, name, copy.deepcopy(value))
    state.step = description.step
    return tensors


def fill(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy values into tensors, in order."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _of_modules(state: State) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for module in modules_of(state).values():
        for each in (*module.parameters(), *module.buffers()):
            found.setdefault(id(each), _local(each))
    return list(found.values())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    # of one that is spread over ranks, what is here
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor).detach()
    return local


def _kept(optimizer: Optimizer) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
    kept, tensors = [], []
    for parameter in _parameters(optimizer):
        of_one: dict[str, Any] = {}
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                local = _local(value)
                of_one[key] = _TensorAt(local.dtype, tuple(local.shape), str(local.device))
                tensors.append(local)
            else:
                of_one[key] = copy.deepcopy(value)
        kept.append(of_one)
    return kept, tensors


def _refill(optimizer: Optimizer, kept: list[dict[str, Any]]) -> list[torch.Tensor]:
    tensors = []
    for parameter, of_one in zip(_parameters(optimizer), kept, strict=True):
        if not of_one:
            optimizer.state.pop(parameter, None)
            continue
        now = optimizer.state.setdefault(parameter, {})
        for key in [key for key in now if key not in of_one]:
            del now[key]
        for key, value in of_one.items():
            if not isinstance(value, _TensorAt):
                now[key] = copy.deepcopy(value)
                continue
            if key not in now:
                now[key] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            tensors.append(_local(now[key]))
    return tensors


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]
