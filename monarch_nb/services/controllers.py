"""`get_or_spawn_controller`: one actor per name for the whole job, in the controller's process.

The registry is itself an actor at a port that every process knows. A controller that fails is
forgotten and made again at the next request; it takes nobody with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.actors.definition import Actor, check_class, check_constructor, concurrent_endpoint
from monarch_nb.core.shape.extent import Shape
from monarch_nb.core.wire.frames import CONTROLLERS_PORT
from monarch_nb.errors import ActorError
from monarch_nb.meshes.actor_mesh import restore_actors, spawn_actors
from monarch_nb.meshes.proc_mesh import this_proc
from monarch_nb.process import current

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.futures.future import Future
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshFailure

T = TypeVar("T")
NAME = "controllers"


class ControllerRegistry(Actor):
    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._making = asyncio.Lock()

    @concurrent_endpoint
    async def get_or_spawn(
        self, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        async with self._making:
            if name not in self._known:
                self._known[name] = await self._spawn(name, cls, args, kwargs)
            return self._known[name]

    async def _spawn(
        self, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        made: Any = this_proc().spawn(name, cls, *args, **kwargs)
        try:
            await made.initialized
        except ActorError as error:
            raise RuntimeError(f"Failure on {name}:\n{error.exception_formatted}") from None
        return made

    def __supervise__(self, failure: MeshFailure) -> bool:
        known = self._known.get(failure.mesh_name)
        if known is not None and known._state is failure.mesh._state:
            del self._known[failure.mesh_name]
        return True


def get_or_spawn_controller(
    name: str,
    Class: type[T],  # noqa: N803  Monarch's name; a constructor may have a `cls`
    *args: object,
    **kwargs: object,
) -> Future[T]:
    """Return the one actor of this name in the whole job, made as its first caller asked for.

    It lives in the controller's process and can be reached from every actor. Raises `ActorError`
    ("Failure on <name>") from the future when its constructor fails, `ValueError` / `TypeError` at
    once for a class or arguments that cannot be.

    Example:
        >>> store = get_or_spawn_controller("store", Store).get()       # doctest: +SKIP
    """
    check_class(Class)
    check_constructor(Class, args, kwargs)
    controller = current.proc().controller
    whole = (CONTROLLERS_PORT, NAME, ControllerRegistry, Shape.unity(), [controller], None)
    registry = restore_actors(whole, Shape.unity())
    found: Future[T] = registry.get_or_spawn.call_one(name, Class, args, kwargs)
    return found


def serve_controllers(proc: Proc) -> None:
    """Make the registry, in the controller's process, when it is first asked."""

    def first(message: Message) -> None:
        del proc.ports[CONTROLLERS_PORT]
        spawn_actors(this_proc()._part, NAME, ControllerRegistry, (), {}, port=CONTROLLERS_PORT)
        proc.deliver(message)

    proc.ports[CONTROLLERS_PORT] = first
