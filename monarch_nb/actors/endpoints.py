"""The adverbs: `mesh.method.call(...)`, `call_one`, `choose`, `stream`, `broadcast`.

Rules: arguments are checked and encoded in the caller, once for all receivers, before anything is
sent; the caller is registered before the first byte leaves.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, final

from monarch_nb import late
from monarch_nb.actors import gate
from monarch_nb.actors.gate import pending
from monarch_nb.actors.signatures import BoundCheck, Propagate
from monarch_nb.actors.undeliverable import Returns
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import CALL
from monarch_nb.process import context, current
from monarch_nb.process.futures.calls import GatherCall, SingleCall, StreamCall, Target
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.futures.tasks import TaskFuture

if TYPE_CHECKING:
    from monarch_nb.actors.ports import Port
    from monarch_nb.process.payloads import Payload
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshState

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Members(Protocol):
    """The actors that are called, as their endpoints know them: an `ActorMesh`."""

    _cls: type

    @property
    def name(self) -> str: ...
    @property
    def _state(self) -> MeshState: ...
    def _target(self, method: str) -> Target: ...


class Sendable(Protocol):
    """A function that ranks run, as `send` takes it: what `remote` makes."""

    def broadcast(self, *args: Any, **kwargs: Any) -> None: ...


@final
class Endpoint(Generic[P, R]):
    """A method of the actors of a mesh, to be called by one of the adverbs.

    Example:
        >>> counters.add.call(1).get()          # doctest: +SKIP
        ValueMesh({gpus: 4}): ...
    """

    __slots__ = ("_check", "_explicit", "_mesh", "_name", "propagate")

    def __init__(
        self,
        mesh: Members,
        name: str,
        check: BoundCheck,
        propagate: Propagate = None,
        *,
        explicit: bool | None = None,
    ) -> None:
        self._mesh = mesh
        self._name = name
        self._check = check
        self._explicit = explicit
        self.propagate = propagate

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Ask every member. The answer has the shape of the mesh or slice; the first error fails
        it. Tensors of a mesh among the arguments: each member gets that of its rank."""
        if self._takes_tensors(args, kwargs):
            return cast("Future[ValueMesh[R]]", self._on_tensors().call(*args, **kwargs))
        proc, target, tag = self._prepare(args, kwargs)
        call = make(GatherCall)
        payload = self._encode(proc, target, args, kwargs)
        call._begin(proc, target, tag)
        call.expect()
        _cast(proc, target, payload, call.port, tag)
        proc.look_for_dead(call)
        return call

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Ask the one member. Raises `ValueError` for a mesh of several."""
        if self._takes_tensors(args, kwargs):
            return cast("Future[R]", self._on_tensors().call_one(*args, **kwargs))
        proc, target, tag = self._prepare(args, kwargs)
        if len(target.processes) != 1:
            raise ValueError(
                f"call_one requires exactly 1 actor, but mesh has {len(target.processes)}"
            )
        return self._single(proc, target, 0, tag, args, kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Ask one member, chosen at random, each with the same chance."""
        proc, target, tag = self._prepare(args, kwargs)
        index = random.randrange(len(target.processes))  # noqa: S311  no secret
        return self._single(proc, target.member(index), index, tag, args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Ask every member now; iterate over as many futures, in the order of the answers."""
        proc, target, tag = self._prepare(args, kwargs)
        call = make(StreamCall)
        payload = self._encode(proc, target, args, kwargs)
        call._begin(proc, target, tag)
        items = call.expect()
        _cast(proc, target, payload, call.port, tag)
        proc.look_for_dead(call)
        return iter(items)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell every member and wait for nobody. An exception there ends the actor."""
        if self._takes_tensors(args, kwargs):
            self._on_tensors().broadcast(*args, **kwargs)
            return
        proc, target, tag = self._prepare(args, kwargs)
        payload = self._encode(proc, target, args, kwargs)
        sender = context.current_sender()
        if sender is None:
            _cast(proc, target, payload, 0, tag)
        else:
            current.part(Returns).cast(sender, target, payload, tag, range(len(target.processes)))

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the result as tensors of the mesh, which stay on the ranks; its kind is known from
        `@endpoint(propagate=...)`. Needs tensors of a mesh among the arguments, or an active mesh.

        Example:
            >>> y = layers.forward.rref(x)     # doctest: +SKIP
        """
        self._check(args, kwargs)
        return self._on_tensors()(*args, **kwargs)

    def _takes_tensors(self, args: Any, kwargs: Any) -> bool:
        engine = late.loaded(late.TENSORS)
        if engine is None or (not kwargs and pickling.are_short_atoms(args)):
            return False
        if found := engine.holds_tensors((args, kwargs)):
            self._check(args, kwargs)
        return bool(found)

    def _on_tensors(self) -> Any:
        return late.load(late.REMOTE_METHODS).remote_method(self)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"endpoint {self._name!r} is not callable directly; write "
            f".{self._name}.call(...), .call_one(...), .choose(...), .stream(...) or "
            ".broadcast(...)"
        )

    def __repr__(self) -> str:
        return f"<Endpoint {self._mesh._state.name}.{self._name}>"

    def _prepare(self, args: Any, kwargs: Any) -> tuple[Proc, Target, int]:
        self._check(args, kwargs)
        target = self._mesh._target(self._name)
        proc = current.runtime().proc
        if pending:
            target = gate.behind(target, proc.id)
        return proc, target, context.current_tag()

    def _encode(
        self,
        proc: Proc,
        target: Target,
        args: Any,
        kwargs: Any,
        lend_to: Sequence[int] | None = None,
    ) -> Payload:
        content = (self._name, args, kwargs, *target.extent, self._explicit)
        if not kwargs and pickling.are_short_atoms(args):
            payload = proc.encode_bytes(pickling.dumps_plain(content))
        else:
            payload = proc.encode(content, target.processes if lend_to is None else lend_to)
        return payload.behind(target.prefix) if target.prefix else payload

    def _single(
        self, proc: Proc, target: Target, index: int, tag: int, args: Any, kwargs: Any
    ) -> Future[R]:
        payload = self._encode(proc, target, args, kwargs)
        call: SingleCall[R] = make(SingleCall)
        call._begin(proc, target, tag)
        proc.send(
            target.processes[0], CALL, target.port, payload, reply=call.port, rank=index, tag=tag
        )
        proc.look_for_dead(call)
        return call


def _cast(proc: Proc, target: Target, payload: Payload, reply: int, tag: int) -> None:
    proc.cast(target.receivers(proc), CALL, target.port, payload, reply=reply, tag=tag)


class PlainMethod:
    """What `mesh.method` is for a method that is no endpoint: an error with a way out."""

    def __init__(self, mesh: Members, name: str, function: Callable[..., object]) -> None:
        self.mesh = mesh
        self.name = name
        self.function = function

    def __call__(self, *_: object, **__: object) -> Any:
        raise self._refusal()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refusal()

    def _refusal(self) -> RuntimeError:
        cls = self.mesh._cls
        return RuntimeError(
            f"Actor {cls} .{self.name} is not annotated as an endpoint. To call it as one, add a "
            f"@endpoint decorator, or wrap it: as_endpoint(mesh.{self.name}).call(...)"
        )


def as_endpoint(
    bound: object, *, propagate: Propagate = None, explicit_response_port: bool = False
) -> Endpoint[Any, Any]:
    """Call a plain method of a spawned actor: `as_endpoint(mesh.method).call_one(...)`.

    Raises `ValueError` for anything else.
    """
    if not isinstance(bound, PlainMethod):
        raise ValueError("expected an method of a spawned actor")  # noqa: TRY004  Monarch's type
    check = BoundCheck(bound.function, 2 if explicit_response_port else 1)
    return Endpoint(bound.mesh, bound.name, check, propagate, explicit=explicit_response_port)


def send(
    endpoint: Endpoint[Any, Any] | Sendable,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: str = "all",
) -> None:
    """Send a call whose answers go to `port` (None: nobody waits).

    Args:
        endpoint: of actors, or a remote function (`monarch_nb.tensor.remote`).
        selection: "all" members or "choose" one at random. Raises `ValueError` for anything else.
    """
    if selection not in {"all", "choose"}:
        raise ValueError(f'selection is "all" or "choose", not {selection!r}')
    if not isinstance(endpoint, Endpoint) or endpoint._takes_tensors(args, kwargs):
        late.load(late.REMOTE_METHODS).send(endpoint, args, kwargs, port, selection)
        return
    proc, target, tag = endpoint._prepare(args, kwargs)
    chosen = random.randrange(len(target.processes)) if selection == "choose" else None  # noqa: S311  no secret
    whole = range(len(target.processes)) if chosen is None else (chosen,)
    answer_to, reply = (proc.id, 0) if port is None else port._claimed()
    lend_to = target.processes if answer_to == proc.id else ()
    payload = endpoint._encode(proc, target, args, kwargs, lend_to)
    sender = context.current_sender()
    if sender is not None and not reply:
        current.part(Returns).cast(sender, target, payload, tag, whole)
        return
    for index in whole:
        process = target.processes[index]
        if answer_to == proc.id:
            proc.send(process, CALL, target.port, payload, reply=reply, rank=index, tag=tag)
        else:
            proc.send_for(answer_to, process, target.port, payload, reply, index, tag)
        if sender is not None:
            current.part(Returns).sent_call(sender, target, index)


def returns_future(function: Callable[P, Any]) -> Callable[P, Future[Any]]:
    """Make an async function return a `Future`; its body runs when the future is first observed.

    Example:
        >>> @returns_future
        ... async def both(a, b): return await a + await b
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[Any]:
        return TaskFuture.of(lambda: function(*args, **kwargs))

    return call


@final
class Accumulator(Generic[P, R, A]):
    """Folds the answers of a mesh from the left, in the order in which they come.

    Example:
        >>> total = Accumulator(counters.value, 0, operator.add)       # doctest: +SKIP
        >>> total.accumulate().get()                                   # doctest: +SKIP
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Send now, fold when observed. A failure fails the fold; no answers give `identity`."""
        answers = self._endpoint.stream(*args, **kwargs)

        async def fold() -> A:
            value = self._identity
            for each in answers:
                value = self._combine(value, await each)
            return value

        return TaskFuture.of(fold)
