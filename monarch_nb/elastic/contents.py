"""All of a state as tensors, and what they are: how it gets into another process, and is kept.

Tensors are those of the process itself: parameters, buffers, what optimizers keep of each
parameter. Everything else travels as one description of them.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.optim import Optimizer

from monarch_nb.elastic.reducers import Layout
from monarch_nb.elastic.state import State, modules_of, optimizers_of, plain_of, stateful_of

_ALIGNED: Final = 64  # bytes


class TensorAt(NamedTuple):
    """Stands for a tensor. `is_spread`: it is a part of one that ranks have together."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    is_spread: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorAt:
        local = local_of(tensor)
        is_spread = hasattr(tensor, "_local_tensor")
        return TensorAt(local.dtype, tuple(local.shape), str(local.device), is_spread)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


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
    tensors: list[TensorAt]


class KeptOf(NamedTuple):
    """What an optimizer keeps of each parameter, with `TensorAt` for the tensors, which are in
    order."""

    rows: list[dict[str, Any]]
    tensors: list[torch.Tensor]


class Contents(NamedTuple):
    """A description, and its tensors in order."""

    description: Description
    tensors: list[torch.Tensor]


def contents(state: State, taken: int, layouts: list[Layout]) -> Contents:
    """Return all of it, after so many steps; the rest as in `Description`. Tensors are the living
    ones."""
    tensors = _of_modules(state)
    optimizers = {}
    for name, optimizer in optimizers_of(state).items():
        kept, found = of_optimizer(optimizer)
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
        tensors=list(map(TensorAt.of, tensors)),
    )
    return Contents(description, tensors)


class Packed(NamedTuple):
    """A copy of contents that nobody changes: all tensors are in one piece of main memory."""

    description: Description
    data: torch.Tensor

    @property
    def contents(self) -> Contents:
        """The same, tensor by tensor."""
        every = self.description.tensors
        tensors = [
            self.data[start : start + each.bytes].view(each.dtype).view(each.shape)
            for each, start in zip(every, _starts(every), strict=False)
        ]
        return Contents(self.description, tensors)


def packed(found: Contents) -> Packed:
    """Copy contents."""
    *_, size = _starts(found.description.tensors)
    copy_of = Packed(found.description, torch.empty(size, dtype=torch.uint8))
    fill(copy_of.contents.tensors, found.tensors)
    return copy_of


def _starts(tensors: Iterable[TensorAt]) -> list[int]:
    # of each in the piece; and its size
    sizes = (-(-each.bytes // _ALIGNED) * _ALIGNED for each in tensors)
    return list(itertools.accumulate(sizes, initial=0))


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
            found.setdefault(id(each), local_of(each))
    return list(found.values())


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor that may be spread over ranks."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor).detach()
    return local


def of_optimizer(optimizer: Optimizer) -> KeptOf:
    """Return what an optimizer keeps."""
    kept, tensors = [], []
    for parameter in _parameters(optimizer):
        of_one: dict[str, Any] = {}
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                local = local_of(value)
                of_one[key] = TensorAt.of(value)
                tensors.append(local)
            else:
                of_one[key] = copy.deepcopy(value)
        kept.append(of_one)
    return KeptOf(kept, tensors)


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
            if not isinstance(value, TensorAt):
                now[key] = copy.deepcopy(value)
                continue
            if key not in now:
                now[key] = _made(value, parameter)
            tensors.append(local_of(now[key]))
    return tensors


def _made(wanted: TensorAt, parameter: torch.Tensor) -> torch.Tensor:
    if wanted.is_spread:  # as its parameter is
        return torch.empty_like(parameter, dtype=wanted.dtype, requires_grad=False)
    return torch.empty(wanted.shape, dtype=wanted.dtype, device=wanted.device)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]
