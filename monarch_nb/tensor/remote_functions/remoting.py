"""`remote`: functions of the user's that ranks run in turn with the operations of torch.

Rule: what a call returns here is known before a rank has run it, from `propagate`: tensors of the
mesh, of the shapes that are promised there. A function that keeps no promise fails as an operation
does.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, cast, overload

import torch
from torch.utils import _pytree

from monarch_nb.actors.endpoints import Endpoint
from monarch_nb.actors.gate import Ticket, prefix_of
from monarch_nb.actors.ports import Port
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.wire import pickling
from monarch_nb.process import current
from monarch_nb.process.futures.future import Future
from monarch_nb.process.payloads import Handed
from monarch_nb.tensor.commands.metadata import TensorMeta, fake_mode, fake_of, meta_of, propagate
from monarch_nb.tensor.commands.propagation import Args, Kwargs
from monarch_nb.tensor.commands.templates import Definition, Input
from monarch_nb.tensor.engine.batches import Home, Ref
from monarch_nb.tensor.engine.functions import defined, issue, tensors_in
from monarch_nb.tensor.meshes.active import get_active_mesh, home_of
from monarch_nb.tensor.moving.between_meshes import refuse_grad
from monarch_nb.tensor.moving.fetching import common_home, fetch_object, fetch_objects, index_of
from monarch_nb.tensor.ranks.interpreter import Failed, FailedInput, error_of, here
from monarch_nb.tensor.remote_functions.local_calls import ask_here
from monarch_nb.tensor.remote_functions.opaque import is_key
from monarch_nb.tensor.tensor_class import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Propagate = Literal["cached", "inspect", "mocked"] | Callable[..., object] | None


class Remote(Generic[P, R]):
    """A function that runs on every rank of a mesh. Made by `remote`."""

    def __init__(self, function: Callable[P, R] | str, propagate: Propagate) -> None:
        if propagate == "mocked":
            raise NotImplementedError('propagate="mocked"; give a function that makes the result')
        if not (propagate in (None, "cached", "inspect") or callable(propagate)):
            raise ValueError(
                f'propagate is None, "cached", "inspect" or a function, not {propagate!r}'
            )
        self._function = function
        self._propagate = propagate
        self._found: dict[bytes, bytes] = {}
        self.__name__ = (
            function if isinstance(function, str) else getattr(function, "__name__", "function")
        )
        self.__doc__ = getattr(function, "__doc__", None) or self.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on the ranks of the tensors among the arguments, or of the mesh that is active.

        Returns what `propagate` makes of the arguments, with tensors of the mesh in it; at once.
        """
        tensors = tensors_in((args, kwargs))
        home, mesh = self._home((args, kwargs))
        result = self._promised(home, mesh, args, kwargs)
        leaves, spec = _pytree.tree_flatten(result)
        new = [meta_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if new:
            for each in tensors:
                refuse_grad(each, f"{self.__name__}, a remote function,")
        ticket = self._ticket(home)
        definition = self._definition(args, kwargs, len(tensors), new)
        made = iter(issue(definition, tensors, home, mesh, new, ticket))
        found = [next(made) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return cast("R", _pytree.tree_unflatten(found, spec))

    rref = __call__

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Run it on the ranks, and bring home what it returned on each."""
        home, mesh = self._home((args, kwargs))
        return fetch_objects(self._issued(home, mesh, args, kwargs, self._ticket(home)))

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Do `call` on a mesh of one rank, for its value. Raises `ValueError` for a mesh of
        several."""
        home, mesh = self._home((args, kwargs))
        if len(home.ranks) != 1:
            raise ValueError(
                f"{self.__name__}.call_one requires exactly 1 rank, but {home.words()} has "
                f"{len(home.ranks)}"
            )
        return cast("Future[R]", self._fetch(home, mesh, 0, args, kwargs))

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run it on the ranks; nobody waits for what it returns."""
        home, mesh = self._home((args, kwargs))
        self._issued(home, mesh, args, kwargs, self._ticket(home))

    def send(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        port: Port[Any] | None,
        selection: str,
    ) -> None:
        """Do `monarch_nb.send`: run it on all ranks or on one, and have it answer at a port."""
        home, mesh = self._home((args, kwargs))
        ranks = [random.choice(home.ranks)] if selection == "choose" else home.ranks  # noqa: S311  no secret
        answers = {rank: home.ranks.index(rank) for rank in ranks}
        ticket = self._ticket(home)
        sent = _Sent(self._function, answers, None if port is None else port._claimed())
        Remote(sent, "inspect")._issued(home, mesh, args, kwargs, ticket)

    def _home(self, values: object) -> tuple[Home, object]:
        if tensors := tensors_in(values):
            home, mesh = common_home(tensors, self.__name__), tensors[0]._ref._mesh
        else:
            mesh = get_active_mesh()
            home = home_of(mesh)
        if isinstance(self._function, Method):
            self._function.check(home)
        return home, mesh

    def _issued(
        self, home: Home, mesh: object, args: Args, kwargs: Kwargs, ticket: Ticket | None
    ) -> Ref:
        # The command; what it returns, whatever it is, has this ref
        tensors = tensors_in((args, kwargs))
        definition = self._definition(args, kwargs, len(tensors), None)
        ref = Ref(home, mesh)
        refs = [each._ref.id for each in tensors]
        home.engine.issue(home, definition, [definition.number, *refs, ref.id], (), ticket)
        return ref

    def _ticket(self, home: Home) -> Ticket | None:
        return self._function.take_ticket(home) if isinstance(self._function, Method) else None

    def _fetch(
        self, home: Home, mesh: object, chosen: int, args: Args, kwargs: Kwargs
    ) -> Future[Any]:
        return fetch_object(self._issued(home, mesh, args, kwargs, self._ticket(home)), chosen)

    def _definition(
        self, args: Args, kwargs: Kwargs, inputs: int, new: list[TensorMeta] | None
    ) -> Definition:
        places = iter(range(inputs))

        def place(leaf: object) -> object:
            return Input(next(places)) if type(leaf) is Tensor else leaf

        given, named = _pytree.tree_map(place, (args, kwargs))
        packed = pickling.dumps((self.__name__, given, named, runner(self._function)))
        return defined(packed, (), inputs, new, self.__name__, promises=True)

    def _promised(self, home: Home, mesh: object, args: Args, kwargs: Kwargs) -> object:
        if self._propagate == "inspect":
            return None
        if callable(self._propagate):
            given, named = _pytree.tree_map(faked, (args, kwargs))
            return propagate(self._propagate, given, named, self.__name__)
        return self._asked(home, mesh, args, kwargs)

    def _asked(self, home: Home, mesh: object, args: Args, kwargs: Kwargs) -> object:
        # What it returned when a rank ran it on fake tensors, once for each kind of arguments
        given = _pytree.tree_map(_kind_of, (args, kwargs))
        key = pickling.dumps((self.__name__, *given))
        found = self._found.get(key)
        if found is None:
            question = Remote(_try_out, "inspect")
            question.__name__ = f"{self.__name__}, run on fake tensors for the shape of its result,"
            packed = pickling.dumps((runner(self._function), *given))
            call = question._fetch(home, mesh, 0, (packed,), {})
            found = self._found[key] = pickling.dumps(call.get())
        return _pytree.tree_map(_fake, pickling.loads(found))


@dataclasses.dataclass(frozen=True)
class _Kind:
    """A tensor in a question and in its answer: a leaf of a tree, as a tensor is."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str


def _kind_of(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _Kind(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device.type)


def _fake(leaf: object) -> object:
    if not isinstance(leaf, _Kind):
        return leaf
    with fake_mode():
        return torch.empty_strided(leaf.sizes, leaf.strides, dtype=leaf.dtype, device=leaf.device)


def faked(leaf: object) -> object:
    return fake_of(leaf._meta) if type(leaf) is Tensor else leaf


def _try_out(packed: bytes) -> object:
    # On a rank: what a function returns for fake tensors, with their kinds in place of tensors
    function, args, kwargs = pickling.loads(packed)
    given, named = _pytree.tree_map(_fake, (args, kwargs))
    result = propagate(function, given, named, getattr(function, "__name__", "the function"))
    return _pytree.tree_map(_kind_of, result)


class _Path:
    """A function by the name of its module and its own; found where it is called."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.__name__ = path

    def __call__(self, *args: object, **kwargs: object) -> object:
        module, _, name = self._path.rpartition(".")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


class _Runner:
    """Calls a function of the user's as code that knows nothing of meshes expects to be."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.__name__ = getattr(function, "__name__", "function")
        self.takes_failed = isinstance(function, _Sent)

    def __call__(self, *args: object, **kwargs: object) -> object:
        with torch.enable_grad():
            result = self._function(*args, **kwargs)
        return _pytree.tree_map(_detached, result)


def _detached(leaf: object) -> object:
    return leaf.detach() if isinstance(leaf, torch.Tensor) and not is_key(leaf) else leaf


def runner(function: Callable[..., object] | str) -> _Runner:
    return _Runner(_Path(function) if isinstance(function, str) else function)


class _Sent:
    """A function as `send` has ranks run it: those of `answers`, as which each of them answers.

    A port is always answered, also where the tensors of the call have failed.
    """

    def __init__(
        self,
        function: Callable[..., object] | str,
        answers: dict[int, int],
        port: tuple[int, int] | None,
    ) -> None:
        self._function = runner(function)
        self._answers = answers
        self._port = port
        self.__name__ = self._function.__name__

    def __call__(self, *args: object, **kwargs: object) -> None:
        index = self._answers.get(here.worker.rank)
        if index is None:
            return
        port: Port[object] = Port(*(self._port or (0, 0)), index)
        try:
            port.send(self._value(args, kwargs))
        except BaseException as error:
            port.exception(_told(error, self.__name__))
            raise

    def _value(self, args: Args, kwargs: Kwargs) -> object:
        for leaf in _pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Failed):
                raise FailedInput(leaf.cause)
        return self._function(*args, **kwargs)


def _told(error: BaseException, name: str) -> Exception:
    if isinstance(error, FailedInput):
        error = error_of(error.cause)
    return error if isinstance(error, Exception) else RuntimeError(f"{name} ended by {error!r}")


class Method:
    """An endpoint of some actors; called on a rank, that of the actor there.

    Each actor gets what its own rank has, when the rank has come so far, and what follows waits for
    its answer. Between the stream and the actor, threads of one process, nothing is copied. It goes
    by the gate of the actor, where other messages of its sender wait for it.
    """

    def __init__(self, endpoint: Endpoint[..., Any]) -> None:
        self._mesh = endpoint._mesh
        self._name = endpoint._name
        self._explicit = endpoint._explicit
        self._prefix = b""
        self.__name__ = f"{self._mesh.name}.{self._name}"

    def take_ticket(self, home: Home) -> Ticket:
        """Return the ticket of a call, for the stream that makes it."""
        target = self._mesh._target(self._name)
        ticket = Ticket(home.engine, target)
        self._prefix = prefix_of(ticket, target, current.proc().id)
        return ticket

    def check(self, home: Home) -> None:
        """Raise `ValueError` unless its actors live on exactly the ranks of a home."""
        if self._mesh._target(self._name).processes != home.target().processes:
            raise ValueError(
                f"{self.__name__} runs where its tensors are, on {home.words()}; {self._mesh.name} "
                "lives on other ranks. Call it on a slice of the actors, or with a slice of the "
                "tensors: t.slice_mesh(...)"
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        handed: list[Handed] = []

        def hand(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            handed.append(Handed(leaf))
            return handed[-1]

        given, named = _pytree.tree_map(hand, (args, kwargs))
        try:
            return ask_here(self._mesh, self._name, given, named, self._explicit, self._prefix)
        finally:
            for each in handed:
                each.let_go()


@overload
def remote(function: Callable[P, R], *, propagate: Propagate = None) -> Remote[P, R]: ...
@overload
def remote(function: str, *, propagate: Propagate = None) -> Remote[Any, Any]: ...
@overload
def remote(*, propagate: Propagate = None) -> Callable[[Callable[P, R]], Remote[P, R]]: ...
def remote(function: Any = None, *, propagate: Propagate = None) -> Any:
    """Make a function one that ranks run, on their own values, in turn with operations of torch.

    Args:
        function: a function, or `"module.name"` of one that ranks can import.
        propagate: what a call returns, as it must be known at once. A function: it is called here
            with fake tensors, and makes fake ones of the right shape and dtype. `"inspect"`: the
            call returns None. None or `"cached"`: a rank runs the function on fake tensors, once
            for each kind of arguments, and the call waits for that.

    Example:
        >>> @remote(propagate=lambda x: x)                 # doctest: +SKIP
        ... def sort(x): return x.sort().values
        >>> y = sort(x)                                    # doctest: +SKIP
    """
    if function is None:
        return lambda wrapped: Remote(wrapped, propagate)
    return Remote(function, propagate)


def remote_method(endpoint: Endpoint[P, R]) -> Remote[P, R]:
    """Make an endpoint a remote function: what tensors of a mesh in a call of an actor mean."""
    rule = endpoint.propagate
    return Remote(cast("Callable[P, R]", Method(endpoint)), _no_rule if rule is None else rule)


def send(
    function: Remote[..., Any] | Endpoint[..., Any],
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None,
    selection: str,
) -> None:
    """Do `monarch_nb.send` for a remote function, or for an endpoint with tensors of a mesh."""
    found = remote_method(function) if isinstance(function, Endpoint) else function
    if not isinstance(found, Remote):
        raise TypeError(f"send takes an endpoint or a remote function, not {function!r}")
    found.send(args, kwargs, port, selection)


def _no_rule(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "rref must know what the endpoint returns before a rank has run it: "
        "@endpoint(propagate=lambda x: x), with fake tensors in place of its arguments"
    )


def call_on_shard_and_fetch(
    function: Remote[P, R] | Endpoint[P, R],
    *args: object,
    shard: Mapping[str, int] | None = None,
    **kwargs: object,
) -> Future[R]:
    """Call a remote function, or an endpoint of actors, on every rank of its tensors' mesh, and
    bring home what it returned on one: tensors of the CPU, and whatever else can be pickled.

    Example:
        >>> call_on_shard_and_fetch(norms, model_state, shard={"gpus": 1}).get()   # doctest: +SKIP
    """
    if isinstance(function, Endpoint):
        function = remote_method(function)
    if not isinstance(function, Remote):
        raise TypeError(
            f"call_on_shard_and_fetch takes a remote function or an endpoint, not {function!r}"
        )
    home, mesh = function._home((args, kwargs))
    chosen = index_of(home, shard or {})
    return cast("Future[R]", function._fetch(home, mesh, chosen, args, kwargs))
