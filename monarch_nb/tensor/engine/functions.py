"""Functions as commands: what is no operation of torch, run on each rank in its turn.

Rule: what a function of ours gets is plain data and tensors; what a user's gets was pickled here,
so that what cannot be fails at the line that gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from torch.utils import _pytree

from monarch_nb.actors.gate import Ticket
from monarch_nb.tensor.commands.borrows import check_all, watched
from monarch_nb.tensor.commands.metadata import TensorMeta
from monarch_nb.tensor.commands.templates import Definition, numbers
from monarch_nb.tensor.engine.batches import Home, Ref
from monarch_nb.tensor.engine.tensors import MeshTensor, tensor_of

T = TypeVar("T")
_definitions: dict[Hashable, Definition] = {}
_LIMIT = 10_000


def tensors_in(values: object) -> list[MeshTensor]:
    """Return the tensors of a mesh in lists, tuples and dicts, in order."""
    return [each for each in _pytree.tree_leaves(values) if isinstance(each, MeshTensor)]


def on_each(obj: T, action: Callable[[MeshTensor], MeshTensor]) -> T:
    """Return the same lists, tuples and dicts, with `action` done to each tensor of a mesh."""
    found: T = _pytree.tree_map(
        lambda leaf: action(leaf) if isinstance(leaf, MeshTensor) else leaf, obj
    )
    return found


def run(
    function: Callable[..., object],
    args: tuple[object, ...],
    *,
    inputs: Sequence[MeshTensor],
    home: Home,
    mesh: object,
    new: Sequence[TensorMeta] = (),
    writes: tuple[int, ...] = (),
    name: str = "",
    key: Hashable = None,
    moves: int = 0,
) -> list[MeshTensor]:
    """Add a command that calls `function(*args)` on the ranks of a home.

    Args:
        args: with `Input(i)` for the tensor `inputs[i]`.
        new: the kinds of the tensors that it returns.
        writes: the inputs that it changes.
        key: equal for calls whose function, arguments and kinds are equal: told to ranks once.
        moves: how many bytes each rank sends to others, about.
    """
    definition = _definitions.get(key) if key is not None else None
    if definition is None:
        definition = defined(function, args, len(inputs), new, name, writes, once=key is None)
        definition = definition._replace(moves=moves)
        if key is not None:
            if len(_definitions) > _LIMIT:
                _definitions.clear()
            _definitions[key] = definition
    return issue(definition, inputs, home, mesh, new)


def defined(
    target: bytes | Callable[..., object],
    args: tuple[object, ...],
    inputs: int,
    new: Sequence[TensorMeta] | None,
    name: str,
    writes: tuple[int, ...] = (),
    *,
    once: bool = True,
    promises: bool = False,
) -> Definition:
    """Define a function as a command. `promises`: its results are checked against `new`."""
    return Definition(
        next(numbers),
        target,
        args,
        {},
        inputs,
        0,
        None if new is None else (True,) * len(new),
        writes,
        shapes=tuple(each.sizes for each in new) if promises and new is not None else None,
        name=name,
        once=once,
    )


def issue(
    definition: Definition,
    inputs: Sequence[MeshTensor],
    home: Home,
    mesh: object,
    new: Sequence[TensorMeta],
    ticket: Ticket | None = None,
) -> list[MeshTensor]:
    if watched:
        check_all(inputs, definition.name, [inputs[index] for index in definition.writes])
    made = [Ref(home, mesh) for _ in new]
    refs = [each._ref.id for each in inputs]
    command = [definition.number, *refs, *[each.id for each in made]]
    home.engine.issue(home, definition, command, new, ticket)
    return [tensor_of(*each) for each in zip(new, made, strict=True)]
