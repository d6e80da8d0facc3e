"""`State`: what a training loop has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from monarch_nb.elastic.batches import Batches


class State:
    """What a training loop has: models, optimizers, a loader, whatever else changes from step to
    step.

    Args:
        step: the step that is run first.
        loader: a `DataLoader`; `state.batch` is its next batch.
        values: anything by name. Modules and optimizers are known by their type; a scheduler, a
            `GradScaler` and the like by `state_dict` and `load_state_dict`; everything else is a
            plain value, which can be copied.

    Example:
        >>> state = State(model=model, optimizer=optimizer, best=float("inf"))   # doctest: +SKIP
        >>> state.model, state.best                                              # doctest: +SKIP
    """

    def __init__(self, *, step: int = 0, loader: Any = None, **values: Any) -> None:
        vars(self)["_values"] = {"step": step, "loader": loader, **values}
        vars(self)["_batches"] = Batches(loader) if isinstance(loader, DataLoader) else None

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = vars(self).get("_values", {})
        if name not in values:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(values)}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "batch":
            raise AttributeError("state.batch is the loader's")
        self._values[name] = value
        if name == "loader":
            vars(self)["_batches"] = Batches(value) if isinstance(value, DataLoader) else None

    @property
    def batch(self) -> Any:
        """The batch of this step, from the loader: the same one, however often it is asked for."""
        if self._batches is None:
            raise TypeError("the state has no loader: State(loader=DataLoader(...))")
        return self._batches.get()

    def __repr__(self) -> str:
        named = [(name, each) for name, each in self._named() if each is not None]
        found = ", ".join(f"{name}: {type(each).__name__}" for name, each in named)
        return f"<State at step {self._values['step']}: {found}>"

    def _named(self) -> Iterator[tuple[str, Any]]:
        return ((name, each) for name, each in self._values.items() if name != "step")


def modules_of(state: State) -> dict[str, torch.nn.Module]:
    return {name: each for name, each in state._named() if isinstance(each, torch.nn.Module)}


def optimizers_of(state: State) -> dict[str, Optimizer]:
    return {name: each for name, each in state._named() if isinstance(each, Optimizer)}


def stateful_of(state: State) -> dict[str, Any]:
    """Schedulers, scalers and the like."""
    return {
        name: each
        for name, each in state._named()
        if not isinstance(each, torch.nn.Module | Optimizer)
        and hasattr(each, "state_dict")
        and hasattr(each, "load_state_dict")
    }


def plain_of(state: State) -> dict[str, Any]:
    """Values that are copied as they are; those that cannot be are left alone."""
    others = modules_of(state) | optimizers_of(state) | stateful_of(state)
    return {
        name: each
        for name, each in state._named()
        if name not in others and name != "loader" and not callable(each)
    }


def batches_of(state: State) -> Batches | None:
    """Return those of its loader, if it has one."""
    found: Batches | None = vars(state)["_batches"]
    return found
