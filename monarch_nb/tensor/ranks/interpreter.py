"""The tensors that a rank holds for the controller, and how it runs a batch of commands.

Rules: nothing that a command does ends the batch. One that fails leaves a `Failed` in place of what
it would have made or changed; a command that needs it is not run and leaves the same one. So later
work that depends on a failure has its cause, and the rest goes on. Here are no messages and no
process groups: what those do is done by the functions that templates name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, TypeVar

import torch
from torch.utils import _pytree

from monarch_nb.core.wire import pickling
from monarch_nb.errors import ActorError
from monarch_nb.process import remote_errors
from monarch_nb.tensor.commands.templates import (
    FREE,
    OPEN,
    SITE,
    Definition,
    Input,
    Scalar,
    number_of,
)


class Cause(NamedTuple):
    """Why something failed: command `at` of batch `number`, from line `site` of the controller.

    `what` it was, `rank` of the mesh named `mesh`, and the error, as `envelope.pack` makes it.
    Equal numbers on several ranks: the same command.
    """

    number: int
    at: int
    site: int
    what: str
    mesh: str
    rank: int
    error: bytes


class Failed:
    """In place of a tensor that is not there."""

    __slots__ = ("cause",)

    def __init__(self, cause: Cause) -> None:
        self.cause = cause


class FailedInput(Exception):
    """Raised by a function: what it was given elsewhere has failed already."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.what)
        self.cause = cause


F = TypeVar("F", bound=Callable[..., object])
_takes_failed: Final[set[Callable[..., object]]] = set()


def takes_failed(function: F) -> F:
    """Have a function of ours called though an input has failed: it gets the `Failed`."""
    _takes_failed.add(function)
    return function


Build = Callable[[list[object]], tuple[Sequence[object], dict[str, object]]]
"""Arguments and named arguments, of inputs and scalars."""


class _Template:
    __slots__ = (
        "build", "definition", "function", "is_operation", "kinds", "length", "name", "once",
        "out_at", "scalars_at", "single",
    )  # fmt: skip

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        target = definition.target
        self.is_operation = isinstance(target, str)
        self.name: str = definition.name or str(getattr(target, "__name__", target))
        self.function: Callable[..., object] | None = None
        self.build: Build | None = None
        self.kinds = _kinds_of(definition)
        self.scalars_at = 1 + definition.inputs
        self.out_at = self.scalars_at + definition.scalars
        self.length = self.out_at + definition.outputs
        self.once = definition.once
        self.single = self.is_operation and definition.new == (True,)

    def load(self) -> None:
        # Find what it does; raises what comes up when a function of the user's is unpickled
        target, args, kwargs = self.definition.target, self.definition.args, self.definition.kwargs
        if isinstance(target, bytes):
            _, args, kwargs, self.function = pickling.loads(target)
        else:
            self.function = _operation(target) if isinstance(target, str) else target
        self.build = _builder(args, kwargs, self.definition.inputs)


def _operation(name: str) -> Callable[..., object]:
    space, packet, overload = name.split(".")
    found: Callable[..., object] = getattr(getattr(getattr(torch.ops, space), packet), overload)
    return found


def _builder(given: tuple[object, ...], named_given: dict[str, object], inputs: int) -> Build:
    flat = [*given, *named_given.values()]
    if not all(map(_is_plain, flat)):
        return lambda values: (
            _filled_tree(given, values, inputs),
            _filled_tree(named_given, values, inputs),
        )
    if any(isinstance(each, (list, tuple, dict)) and not _is_place(each) for each in flat):
        return lambda values: (_filled(given, values, inputs), _filled(named_given, values, inputs))
    places = [(at, _position(each, inputs)) for at, each in enumerate(given) if _is_place(each)]
    named = [
        (name, _position(each, inputs)) for name, each in named_given.items() if _is_place(each)
    ]
    blank, constants = list(given), named_given

    def build(values: list[object]) -> tuple[Sequence[object], dict[str, object]]:
        args = blank.copy()
        for at, index in places:
            args[at] = values[index]
        if not named:
            return args, constants
        return args, {**constants, **{name: values[index] for name, index in named}}

    return build


def _is_place(value: object) -> TypeGuard[Input | Scalar]:
    return isinstance(value, (Input, Scalar))


def _is_plain(value: object) -> bool:
    # Whether places in it are in lists, tuples and dicts only, not in other nodes of trees
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)) and not _is_place(value):
        return all(map(_is_plain, value))
    return _is_place(value) or _pytree.tree_is_leaf(value)


def _filled_tree(value: Any, values: list[object], inputs: int) -> Any:
    return _pytree.tree_map(
        lambda leaf: values[_position(leaf, inputs)] if _is_place(leaf) else leaf,
        value,
        is_leaf=_is_place,
    )


def _position(place: Input | Scalar, inputs: int) -> int:
    return place.place if isinstance(place, Input) else inputs + place.place


def _filled(value: Any, values: list[object], inputs: int) -> Any:
    if isinstance(value, (Input, Scalar)):
        return values[_position(value, inputs)]
    if isinstance(value, dict):
        return {name: _filled(each, values, inputs) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_filled(each, values, inputs) for each in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


class Interpreter:
    """The tensors of one stream on one rank. All methods: the stream's own thread.

    `open_gate(port, ticket)` is called when the call of an actor with this ticket is over.
    """

    def __init__(self, mesh: str, rank: int, open_gate: Callable[[int, int], None]) -> None:
        self._mesh = mesh
        self._open_gate = open_gate
        self._rank = rank
        self.tensors: dict[int, object] = {}
        """By ref."""
        self._templates: dict[int, _Template] = {}
        self._errors: list[Exception] = []
        self._number = self._at = self._site = 0

    def define(self, definition: Definition) -> None:
        self._templates[definition.number] = _Template(definition)

    def run(self, number: int, batch: Sequence[int]) -> list[Exception]:
        """Run a batch to its end; what its commands raised, each for the first time.

        A KeyboardInterrupt or SystemExit fails the command that runs, and the next begins.
        """
        self._number, self._at, self._errors = number, 0, []
        with torch.no_grad():
            while self._at < len(batch):
                try:
                    self._run_on(batch)
                except (KeyboardInterrupt, SystemExit) as error:
                    self._fail(batch, error)
        errors, self._errors = self._errors, []  # their frames hold tensors
        return errors

    def values(self, refs: Sequence[int]) -> list[object]:
        """Return the tensors of some refs; raises `FailedInput` for the first that has failed."""
        found = [self._find(ref) for ref in refs]
        for each in found:
            if type(each) is Failed:
                raise FailedInput(each.cause)
        return found

    def _run_on(self, batch: Sequence[int]) -> None:
        templates, size = self._templates, len(batch)
        at = self._at
        while at < size:
            self._at = at
            code = batch[at]
            if code >= 0:
                template = templates[code]
                try:
                    self._execute(template, batch, at)
                except Exception as error:  # noqa: BLE001  anybody's, kept for whoever fetches
                    self._fail(batch, error)
                if template.once:
                    templates.pop(code, None)
                at += template.length
            else:
                at += self._mind(batch, at)
        self._at = at

    def _execute(self, template: _Template, batch: Sequence[int], at: int) -> None:
        tensors, out_at = self.tensors, at + template.out_at
        values = [tensors[ref] for ref in batch[at + 1 : at + template.scalars_at]]
        if template.kinds:
            values += [
                number_of(bits) if is_float else bits
                for bits, is_float in zip(
                    batch[at + template.scalars_at : out_at], template.kinds, strict=True
                )
            ]
        if template.build is None:
            template.load()
        assert template.build is not None
        assert template.function is not None
        if not template.is_operation:
            _check_inputs(template.function, values)
        args, kwargs = template.build(values)
        result = template.function(*args, **kwargs)
        if template.single:
            tensors[batch[out_at]] = result
        else:
            self._bind(template, result, batch, out_at)

    def _mind(self, batch: Sequence[int], at: int) -> int:
        code = batch[at]
        if code == SITE:
            self._site = batch[at + 1]
        elif code == FREE:
            self.tensors.pop(batch[at + 1], None)
        else:
            assert code == OPEN
            self._open_gate(batch[at + 1], batch[at + 2])
            return 3
        return 2

    def _bind(self, template: _Template, result: object, batch: Sequence[int], at: int) -> None:
        new = template.definition.new
        if new is None:
            self.tensors[batch[at]] = result
            return
        leaves = [each for each in _pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
        if len(leaves) != len(new):
            raise ValueError(
                f"{template.name} returned {_count(len(leaves))}, where {len(new)} were promised"
            )
        made = [leaf for leaf, is_new in zip(leaves, new, strict=True) if is_new]
        if (promised := template.definition.shapes) is not None:
            for leaf, shape in zip(made, promised, strict=True):
                if tuple(leaf.shape) != shape:
                    raise ValueError(
                        f"{template.name} returned a tensor of shape {tuple(leaf.shape)}, where "
                        f"`propagate` promised {shape}"
                    )
        for leaf in made:
            self.tensors[batch[at]] = leaf
            at += 1

    def _fail(self, batch: Sequence[int], error: BaseException) -> None:
        at, code = self._at, batch[self._at]
        if code < 0:  # an interrupt between two commands
            self._at += self._mind(batch, at)
            return
        template = self._templates[code]
        refs = batch[at + 1 : at + template.scalars_at]
        failed = self._cause(template, refs, error)
        for ref in batch[at + template.out_at : at + template.length]:
            self.tensors[ref] = failed
        for index in template.definition.writes:
            self.tensors[refs[index]] = failed
        self._at = at + template.length

    def _cause(self, template: _Template, refs: Sequence[int], error: BaseException) -> Failed:
        if isinstance(error, FailedInput):
            return Failed(error.cause)
        for ref in refs:
            if type(found := self._find(ref)) is Failed:
                return found
        packed = remote_errors.pack(remote_errors.RAISED, error)
        if isinstance(error, Exception):
            self._errors.append(error)
        return Failed(self._told(self._number, self._at, template.name, packed))

    def _told(self, number: int, at: int, what: str, error: bytes) -> Cause:
        return Cause(number, at, self._site, what, self._mesh, self._rank, error)

    def _find(self, ref: int) -> object:
        found = self.tensors.get(ref)
        if found is None:
            lost = RuntimeError(
                "this rank has no such tensor: a rank of its mesh was lost since, or when it was "
                "made"
            )
            packed = remote_errors.pack(remote_errors.RAISED, lost)
            found = self.tensors[ref] = Failed(self._told(0, ref, "a tensor", packed))
        return found


def error_of(cause: Cause) -> BaseException:
    """Return what has failed as an error for whoever else is given it."""
    error = remote_errors.unpack(cause.error, what=cause.what, rank=cause.rank, size=1)
    if isinstance(error, ActorError) and error.exception is not None:
        why = remote_errors.one_line(error.exception)
        error.message = f"{cause.what} failed on rank {cause.rank} of {cause.mesh}: {why}"
    return error


def _check_inputs(function: Callable[..., object], values: Sequence[object]) -> None:
    if function in _takes_failed or getattr(function, "takes_failed", False):
        return
    for each in values:
        if type(each) is Failed:
            raise FailedInput(each.cause)


def _kinds_of(definition: Definition) -> tuple[bool, ...]:
    if not definition.scalars:
        return ()
    leaves = _pytree.tree_leaves(
        (definition.args, definition.kwargs), is_leaf=lambda leaf: isinstance(leaf, Scalar)
    )
    found = {each.place: each.is_float for each in leaves if isinstance(each, Scalar)}
    return tuple(found[index] for index in range(definition.scalars))


def own_copy(value: torch.Tensor, device: str) -> torch.Tensor:
    """Copy it into memory of its own, as what came is lent."""
    return value.clone() if device == "cpu" else value.to(device)


def _count(tensors: int) -> str:
    return "1 tensor" if tensors == 1 else f"{tensors} tensors"


class Worker(Protocol):
    """Of one stream on one rank. `owner` is that of its process groups."""

    rank: int
    owner: str
    interpreter: Interpreter


class Here(threading.local):
    """What functions of templates may ask for: the rank that runs them. Set by its worker."""

    worker: Worker


here: Final = Here()
