"""Functions as commands: what is no operation of torch, run on each rank in its turn.

Rule: what a function of ours gets is plain data and tensors; what a user's gets was pickled here,
so that what cannot be fails at the line that gave it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import torch
from torch.utils import _pytree

from monarch_nb.tensor.commands.borrows import check_all, watched
from monarch_nb.tensor.commands.metadata import TensorMeta
from monarch_nb.tensor.commands.templates import Definition, numbers
from monarch_nb.tensor.engine.batches import Engine, Home, Ref
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
) -> list[MeshTensor]:
    """Add a command that calls `function(*args)` on the ranks of a home.

    Args:
        args: with `Input(i)` for the tensor `inputs[i]`.
        new: the kinds of the tensors that it returns.
        writes: the inputs that it changes.
        key: equal for calls whose function, arguments and kinds are equal: told to ranks once.
    """
    definition = _definitions.get(key) if key is not None else None
    if definition is None:
        definition = defined(function, args, len(inputs), new, name, writes, once=key is None)
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
) -> list[MeshTensor]:
    if watched:
        check_all(inputs, definition.name, [inputs[index] for index in definition.writes])
    made = [Ref(home, mesh) for _ in new]
    refs = [each._ref.id for each in inputs]
    home.engine.issue(home, definition, [definition.number, *refs, *[each.id for each in made]])
    return [tensor_of(*each) for each in zip(new, made, strict=True)]


# ------------------------------------------------------------------------------ `torch.manual_seed`

DEFAULT: Final = 67280421310721
"""PyTorch's own, of a generator that nobody has seeded."""
_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
_lock: Final = threading.Lock()


def follow(engine: Engine) -> None:
    """Seed this engine's ranks with the controller from now on; as it is now, if it was seeded.

    It seeds every device, PyTorch says; the ranks of a mesh are devices of the controller. They get
    the seed in turn with their commands, and draw the same numbers till a program seeds them apart.
    """
    with _lock:
        if engine in _engines:
            return
        _engines.add(engine)
        _install()
    if (number := torch.initial_seed()) != DEFAULT:
        _send(engine, number)


@functools.cache
def _install() -> None:
    # around what it is now: PyTorch's compiler puts something of its own around it
    original = torch.manual_seed

    @functools.wraps(original)
    def manual_seed(seed: int) -> torch.Generator:
        found = original(seed)
        for engine in list(_engines):
            if not engine.is_over():
                _send(engine, torch.initial_seed())
        return found

    torch.manual_seed = torch.random.manual_seed = manual_seed


def _send(engine: Engine, number: int) -> None:
    home = engine.home(engine.procs.shape)
    run(_seed, (number,), inputs=[], home=home, mesh=None)


def _seed(number: int) -> None:
    torch.manual_seed(number)
