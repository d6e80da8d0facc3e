"""What an operation of torch makes of tensors of certain kinds, found out once.

Rule: a call is what its key says: the operation, the kinds of its tensors, and its constants.
Numbers that say nothing of shapes (a learning rate) are no part of it: they travel with each
command.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.utils import _pytree

from monarch_nb.tensor.commands.metadata import TensorMeta, fake_of, meta_of, propagate
from monarch_nb.tensor.commands.templates import Definition, Input, Scalar, numbers

LARGEST: Final = 1 << 62
"""An integer from here on is a constant."""
_lifts: dict[Operation, bool] = {}
_NAMES: Final = {"aten._local_scalar_dense.default": "item()"}
_wholes: dict[Operation, Callable[..., object] | None] = {}

Operation = OpOverload[..., object]
Args = Sequence[object]
Kwargs = dict[str, object]
Result = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], object]
"""Made of the new tensors and of the inputs."""


def name_of(func: Operation) -> str:
    return _NAMES.get(str(func), str(func))


class Known:
    """What an operation makes of inputs of certain kinds.

    `single`: of the one new tensor that it returns. Else `rebuild(made, tensors)` makes the result
    of the new tensors and the inputs; `new` are their kinds.
    """

    __slots__ = ("definition", "new", "rebuild", "single")

    def __init__(
        self, definition: Definition, new: tuple[TensorMeta, ...], rebuild: Result | None
    ) -> None:
        self.definition = definition
        self.new = new
        self.rebuild = rebuild
        self.single = new[0] if rebuild is None else None


def lifted(func: Operation) -> bool:
    """Return whether numbers among the arguments travel with each command."""
    found = _lifts.get(func)
    if found is None:
        name = func.overloadpacket.__name__
        found = torch.Tag.pointwise in func.tags or name.startswith(("_foreach_", "_fused_"))
        found = _lifts[func] = found and name not in {"fill", "_to_copy"}
    return found


def of_the_whole(func: Operation) -> Callable[..., object] | None:
    """Return what to do instead, on a tensor that is cut over ranks; None: the operation itself.

    DTensor takes gradients of losses part by part, and divides by the size of a part where a mean
    is over the whole (torch 2.13, `mse_loss` and others). Made of smaller operations they are
    right, because those know the size of the whole.
    """
    if func not in _wholes:
        names = {argument.name for argument in func._schema.arguments}
        name = func.overloadpacket.__name__
        by_parts = "reduction" in names and name.endswith("_backward") and "nll" not in name
        _wholes[func] = decomposition_table.get(func) if by_parts else None
    return _wholes[func]


class _Faked:
    """Fake tensors in place of those of the class `kind`, one for each.

    `count` were asked for; `places` has the first place of each, by the identity of the fake.
    """

    def __init__(self, kind: type[torch.Tensor]) -> None:
        self.count = 0
        self.places: dict[int, int] = {}
        self._kind = kind
        self._fakes: dict[int, torch.Tensor] = {}  # by the identity of what they stand for

    def __call__(self, value: object) -> object:
        if not isinstance(value, self._kind):
            return value
        found = self._fakes.setdefault(id(value), fake_of(getattr(value, "_meta")))  # noqa: B009
        self.places.setdefault(id(found), self.count)
        self.count += 1
        return found


class Propagator:
    """Asks PyTorch. `kind` is the class of tensors of a mesh, each with its `_meta`."""

    def __init__(self, kind: type[torch.Tensor]) -> None:
        self._kind = kind

    def learn(self, func: Operation, args: Args, kwargs: Kwargs) -> Known | None:
        """Find what this makes of such inputs; None where no tensor comes of it, or is changed.

        Raises what PyTorch raises for such inputs.
        """
        faked = _Faked(self._kind)
        fake_args, fake_kwargs = _pytree.tree_map(faked, (tuple(args), kwargs))
        result = propagate(func, fake_args, fake_kwargs, name_of(func))
        return self._known(func, args, kwargs, faked, result)

    def answer(self, func: Operation, args: Args, kwargs: Kwargs) -> object:
        """Answer a question that shapes alone answer."""

        def faked(value: object) -> object:
            meta: TensorMeta | None = getattr(value, "_meta", None)
            return value if meta is None else fake_of(meta)

        fake_args, fake_kwargs = _pytree.tree_map(faked, (tuple(args), kwargs))
        return propagate(func, fake_args, fake_kwargs, str(func))

    def _known(
        self, func: Operation, args: Args, kwargs: Kwargs, faked: _Faked, result: object
    ) -> Known | None:
        leaves, spec = _pytree.tree_flatten(result)
        places = faked.places
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        told = tuple(id(leaf) not in places for leaf in tensors)
        new = tuple(meta_of(leaf) for leaf in tensors if id(leaf) not in places)
        writes = self._written(func, args, kwargs)
        if not told and not writes:
            return None
        given, named, scalars = self._places(func, args, kwargs)
        definition = Definition(
            next(numbers), str(func), given, named, faked.count, scalars, told, writes
        )
        if new and isinstance(result, torch.Tensor):
            return Known(definition, new, None)
        made = itertools.count()
        plan = [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else _Was(places[id(leaf)])
            if id(leaf) in places
            else _Made(next(made))
            for leaf in leaves
        ]
        return Known(definition, new, _rebuilder(spec, plan))

    def _places(
        self, func: Operation, args: Args, kwargs: Kwargs
    ) -> tuple[tuple[object, ...], Kwargs, int]:
        # The arguments with `Input` and `Scalar` where `flatten` takes tensors and numbers out
        lifts, found = lifted(func), list[Scalar]()
        inputs = itertools.count()

        def place(value: Any) -> Any:
            kind = type(value)
            if isinstance(value, self._kind):
                return Input(next(inputs))
            if lifts and (kind is float or (kind is int and -LARGEST < value < LARGEST)):
                found.append(Scalar(len(found), kind is float))
                return found[-1]
            if kind is list or kind is tuple:
                return kind(place(each) for each in value)
            if kind is torch.device:
                return torch.device(value.type)  # each rank has its own of a kind
            return value

        given = tuple(map(place, args))
        return given, {name: place(each) for name, each in kwargs.items()}, len(found)

    def _written(self, func: Operation, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
        schema, found, count = func._schema, list[int](), 0
        if not schema.is_mutable:
            return ()
        for argument, given in arguments(func, args, kwargs):
            size = sum(isinstance(leaf, self._kind) for leaf in _pytree.tree_leaves(given))
            if argument.is_write:
                found += range(count, count + size)
            count += size
        return tuple(found)


def arguments(func: Operation, args: Args, kwargs: Kwargs) -> list[tuple[torch.Argument, object]]:
    """Return each argument of the schema of an operation with what was given for it."""
    return [
        (argument, args[at] if at < len(args) else kwargs.get(argument.name))
        for at, argument in enumerate(func._schema.arguments)
    ]


class _Made(int):
    """A leaf of a result: this new tensor."""


class _Was(int):
    """A leaf of a result: this input."""


def _rebuilder(spec: _pytree.TreeSpec, plan: Sequence[object]) -> Result:
    if len(plan) == 1 and isinstance(plan[0], _Was) and spec.is_leaf():
        place = int(plan[0])
        return lambda _, tensors: tensors[place]

    def rebuild(made: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> object:
        leaves = [
            made[leaf] if type(leaf) is _Made else tensors[leaf] if type(leaf) is _Was else leaf
            for leaf in plan
        ]
        return _pytree.tree_unflatten(leaves, spec)

    return rebuild
