"""What a user writes: `Actor` classes with `endpoint`s, and the checks made when one is spawned.

This file knows nothing of processes or messages: it reads classes and signatures, and says in one
sentence what is wrong with them.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from monarch_nb.actors.signatures import BoundCheck, Propagate

if TYPE_CHECKING:
    from monarch_nb.actors.endpoints import Endpoint
    from monarch_nb.actors.undeliverable import UndeliverableMessageEnvelope
    from monarch_nb.process.futures.future import Future
    from monarch_nb.process.supervision.supervision import MeshFailure

P = ParamSpec("P")
R = TypeVar("R")

RETURN_HOOK = "_handle_undeliverable_message"
HOOKS = ("__supervise__", "__cleanup__", RETURN_HOOK)
# names of a mesh that an endpoint would hide
RESERVED = frozenset(
    {
        *("slice", "split", "flatten", "rename", "size", "sizes", "extent"),
        *("stop", "initialized", "heal", "name", "ranks"),
    }
)


class EndpointProperty(Generic[P, R]):
    """A method marked by `endpoint`: itself on the class, the plain method on an instance."""

    def __init__(
        self,
        method: Callable[..., object],
        *,
        propagate: Propagate = None,
        explicit_response_port: bool = False,
        concurrent: bool = False,
        instrument: bool = True,
    ) -> None:
        self.method = method
        self.propagate = propagate
        self.explicit_response_port = explicit_response_port
        self.concurrent = concurrent
        self.instrument = instrument
        self.is_async = inspect.iscoroutinefunction(method)
        functools.update_wrapper(self, method)  # type: ignore[arg-type]  # an object, no function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def _method(self) -> Callable[..., object]:
        # Monarch's name, by which programs show the source of an endpoint
        return self.method

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> EndpointProperty[P, R]: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Endpoint[P, R]: ...
        def __get__(self, instance: object, owner: type) -> Any: ...

    else:

        def __get__(self, instance: object, owner: type) -> Any:
            return self if instance is None else self.method.__get__(instance, owner)


Method = Callable[Concatenate[Any, P], R]


@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    *,
    propagate: Propagate = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Callable[[Callable[..., Any]], EndpointProperty[Any, Any]]: ...
def endpoint(
    method: Callable[..., object] | None = None,
    /,
    *,
    propagate: Propagate = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark a method of an `Actor` as callable from other processes.

    Args:
        propagate: shape rule for the tensor engine.
        explicit_response_port: the method gets a `Port` as its first argument after self and may
            answer any number of times; its return value is ignored.
        instrument: whether calls are recorded.

    Example:
        >>> class Counter(Actor):
        ...     def __init__(self): self.n = 0
        ...     @endpoint
        ...     def add(self, k: int) -> int:
        ...         self.n += k
        ...         return self.n

    The idea and the name are Monarch's.
    """

    def mark(function: Callable[..., object]) -> EndpointProperty[..., object]:
        return EndpointProperty(
            function,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
        )

    return mark if method is None else mark(method)


def concurrent_endpoint(
    method: Callable[..., object] | None = None,
    /,
    *,
    propagate: Propagate = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Mark an async endpoint whose body runs as a task: others are accepted while it awaits.

    Concurrent calls of one sender start in order. Raises `ValueError` for a plain `def` and for a
    method that is an endpoint already.

    Example:
        >>> class Server(Actor):
        ...     @concurrent_endpoint
        ...     async def wait(self, s: float) -> None:
        ...         await asyncio.sleep(s)
    """

    def mark(function: Any) -> EndpointProperty[..., object]:
        if isinstance(function, EndpointProperty):
            raise ValueError(  # noqa: TRY004  Monarch's type
                "concurrent_endpoint does not wrap @endpoint; use one of the two"
            )
        if not inspect.iscoroutinefunction(function):
            raise ValueError(
                "concurrent_endpoint can only wrap async endpoints; write "
                f"`async def {function.__name__}`"
            )
        return EndpointProperty(
            function,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            concurrent=True,
            instrument=instrument,
        )

    return mark if method is None else mark(method)


class _Nothing:
    """Answer of a hook of the base class: false, and awaitable for asynchronous actors."""

    def __bool__(self) -> bool:
        return False

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return False


class Actor:
    """Base class of what lives on ranks and is called by messages, one at a time.

    Subclass it, mark methods with `@endpoint`, and let a process mesh make the instances:
    `counters = procs.spawn("counters", Counter, ...)`. An actor whose endpoints are all plain `def`
    has one thread for life; else it has an event loop of its own.

    Hooks, all optional: `__supervise__(self, failure) -> bool` is called on the owner when a mesh
    that it spawned fails (truthy: handled; else the owner fails, and who waits for it is told);
    `__cleanup__(self, exc)` runs once when the actor stops (3 s);
    `super().__supervise__(failure)` handles nothing, `super().__cleanup__(exc)` does nothing;
    `_handle_undeliverable_message(self, envelope) -> bool` is called on the actor that sent a
    message which nobody got and of which nobody else is told: a broadcast, a `send`, or a value
    sent to a port, when the actor there has ended (also while the message was queued), its process
    has died before it got it, or the port's receiver is gone. A call has a future, which raises; a
    call on a mesh that is known to be lost raises at once; of these the hook is not told.
    `envelope.sender()`, `.dest()`, `.message` ("workers.step") and `.error` say what and why. True
    means consumed; False, or no hook: the message is dropped in silence. If it raises, the actor
    fails. It runs on the actor's own thread: before queued calls on a sync actor, beside the calls,
    one at a time, on an async one (where it may be `async def`). Of what was on its way when a
    process died, some may have been handled there.

    Example:
        >>> class Feeder(Actor):
        ...     def _handle_undeliverable_message(self, envelope):
        ...         self.logger.warning("%s", envelope)
        ...         return True
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """A logger named after the class."""
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    if TYPE_CHECKING:
        # on what `spawn` returns; here so that a type checker sees them
        @property
        def initialized(self) -> Future[None]: ...
        def stop(self, reason: str = "stopped by client") -> Future[None]: ...
        def __supervise__(self, failure: MeshFailure) -> bool: ...
        def __cleanup__(self, exc: Exception | None) -> None: ...
        def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> bool: ...

    else:

        def __supervise__(self, failure: MeshFailure) -> _Nothing:
            return _Nothing()

        def __cleanup__(self, exc: Exception | None) -> _Nothing:
            return _Nothing()


def has_hook(cls: type, name: str) -> bool:
    """Tell whether a class has a hook of its own."""
    return getattr(cls, name, None) is not getattr(Actor, name, None)


@functools.lru_cache(maxsize=4096)
def endpoints_of(cls: type) -> dict[str, EndpointProperty[..., object]]:
    found: dict[str, EndpointProperty[..., object]] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, EndpointProperty):
                found[name] = value
            elif name in found:
                del found[name]  # overridden by something that is no endpoint
    return found


def is_sync(cls: type) -> bool:
    """Tell whether instances run on a plain thread: of some endpoints, all are plain `def`."""
    marked = endpoints_of(cls).values()
    return bool(marked) and not any(each.is_async for each in marked)


def check_class(cls: object) -> None:
    """Raise `ValueError` with one sentence for a class that cannot be spawned."""
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise ValueError(  # noqa: TRY004  Monarch's type
            f"{getattr(cls, '__name__', cls)!r} must subclass monarch.service.Actor: "
            "write `class Name(monarch_nb.Actor)` to spawn it"
        )
    actor: object = cls
    marked = endpoints_of(actor)
    kinds = {each.is_async for each in marked.values()}
    if len(kinds) == 2:
        raise ValueError(f"{cls.__name__} mixes both async and sync endpoints: {_by_kind(marked)}")
    for name in marked:
        if name in RESERVED:
            raise ValueError(
                "ActorMesh has an attribute that collides with an endpoint name: "
                f"{cls.__name__}.{name}; rename the endpoint"
            )
    _check_hooks(cls, sync=is_sync(cls))


def _check_hooks(cls: type, *, sync: bool) -> None:
    for hook in HOOKS:
        if not has_hook(cls, hook):
            continue
        is_async = inspect.iscoroutinefunction(getattr(cls, hook))
        if sync and is_async:
            raise ValueError(
                f"{cls.__name__} has sync endpoints and an async {hook}; make it `def`"
            )
        if not sync and not is_async and hook == "__cleanup__":
            why = "async endpoints" if endpoints_of(cls) else "no endpoints, which makes it async,"
            raise ValueError(
                f"{cls.__name__} has {why} and a synchronous {hook}; make it `async def`"
            )


def _by_kind(marked: dict[str, EndpointProperty[..., object]]) -> str:
    names = {
        kind: ", ".join(n for n, each in marked.items() if each.is_async == (kind == "async def"))
        for kind in ("async def", "def")
    }
    return f"async def: {names['async def']}; def: {names['def']}; make them all one kind"


@functools.lru_cache(maxsize=4096)
def binder(marked: EndpointProperty[..., object]) -> BoundCheck:
    return BoundCheck(marked.method, 2 if marked.explicit_response_port else 1)


def check_constructor(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `TypeError` for arguments that the constructor of an actor class would refuse."""
    init: Any = getattr(cls, "__init__")  # noqa: B009  of the class, not of an instance
    if init is not object.__init__:
        BoundCheck(init, 1)(args, kwargs)
    elif args or kwargs:
        raise TypeError(f"{cls.__name__}() takes no arguments")
