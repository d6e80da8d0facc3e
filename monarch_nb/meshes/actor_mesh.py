"""`ActorMesh`: the actors of one `spawn`, and its slices; what you call endpoints on.

A handle is small and can be sent anywhere; only the handles of the process that spawned know how to
stop and heal.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar, final

from monarch_nb.actors.definition import binder, endpoints_of
from monarch_nb.actors.endpoints import Endpoint, PlainMethod, returns_future
from monarch_nb.actors.signatures import BoundCheck
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.shape.mesh_trait import ShapedMesh
from monarch_nb.errors import SupervisionError
from monarch_nb.meshes.healing.healing import Healing
from monarch_nb.meshes.restarting.intensity import Restart
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import ActorsState, Part, known_here
from monarch_nb.process import current
from monarch_nb.process.futures.calls import Target
from monarch_nb.process.futures.future import Future
from monarch_nb.process.supervision.supervision import Supervision

A = TypeVar("A")


@final
class ActorMesh(ShapedMesh, Generic[A]):
    """The instances of an actor class on the processes of a mesh (or on a slice of it).

    Every endpoint of the class is an attribute: `mesh.step.call(...)`. `slice`, `split`, `flatten`,
    `rename`, `sizes` work as on all meshes.

    Example:
        >>> trainers = procs.spawn("trainer", Trainer)           # doctest: +SKIP
        >>> trainers.slice(gpus=0).step.call_one(batch).get()    # doctest: +SKIP
    """

    def __init__(self, state: ActorsState, shape: Shape, *, keeps_alive: bool = True) -> None:
        self._state = state
        self._shape = shape
        self._cls = state.cls
        self._ranks = shape.ranks()
        self._targets: dict[str, Target] = {}
        self._answer_shape = Shape(shape.labels, Slice.new_row_major(shape.ndslice.sizes))
        self._token = state.procs.token() if keeps_alive and state.procs is not None else None

    def _new_with_shape(self, shape: Shape) -> ActorMesh[A]:
        return ActorMesh(self._state, shape)

    @property
    def ranks(self) -> list[int]:
        """Ranks of these actors in the mesh that was spawned."""
        return list(self._ranks)

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._state.name

    @property
    def initialized(self) -> Future[None]:
        """Done when every constructor has run; raises what one of them raised."""
        return self._state.initialized if self._state.owned else _constructed(self)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stop the actors: each ends its endpoint, drops its queue and runs `__cleanup__`."""
        if not self._state.owned or len(self._ranks) != len(self._state.processes):
            raise RuntimeError(
                "only the process that spawned an actor mesh can stop it, and not a slice"
            )
        return current.part(Spawner).stop_actors(self._state, reason)

    def heal(self, *, shrink: bool = False) -> ActorMesh[A]:
        """Bring lost ranks back: new processes at the same coordinates, actors made again from
        their arguments.

        Args:
            shrink: do not start anything; return a smaller mesh of the ranks that live.
        """
        healed = current.part(Healing).actors(self._state, shrink=shrink)
        return self if healed is self._state else ActorMesh(healed, healed.shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any
        marked = endpoints_of(self._cls).get(name)
        if marked is not None:
            found = Endpoint(self, name, binder(marked), marked.propagate)
        elif callable(function := getattr(self._cls, name, None)):
            found = PlainMethod(self, name, function)
        else:
            known = ", ".join(sorted(endpoints_of(self._cls))) or "none"
            raise AttributeError(
                f"{self._cls.__name__} has no endpoint {name!r}; its endpoints are: {known}"
            )
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *endpoints_of(self._cls)]

    def _target(self, method: str) -> Target:
        state = self._state
        if state.trouble:
            self._check(method)
        found = self._targets.get(method)
        if found is None or found.version != state.version:
            processes = [state.processes[rank] for rank in self._ranks]
            found = Target(state, method, processes, self._ranks, self._answer_shape, self._token)
            self._targets[method] = found
        return found

    def _check(self, method: str) -> None:
        state = self._state
        try:
            state.check(self._ranks, f"{state.name}.{method}")
        except SupervisionError:
            current.part(Supervision).send_failed(state)
            raise

    def __await__(self) -> Generator[object, None, ActorMesh[A]]:
        """Wait for the constructors: `actors = await procs.spawn(...)`."""
        yield from self.initialized.__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._state
        if state.procs is not None:
            state.procs.share()
        processes = list(state.processes)
        whole = state.number, state.name, state.cls, state.shape, processes, state.restarted_by
        return restore_actors, (whole, self._shape)

    def __repr__(self) -> str:
        kind = f"{self._cls.__module__}.{self._cls.__qualname__}"
        lost = [rank for rank in self._ranks if rank in self._state.lost]
        state = (self._state.ended and "stopped") or (f"lost ranks {lost}" if lost else "ready")
        name, sizes = self._state.name, self._sizes_text()
        return f"ActorMesh(class={kind}, name={name!r}, shape={{{sizes}}}, {state})"


@returns_future
async def _constructed(mesh: ActorMesh[Any]) -> None:
    await Endpoint(whole_actors(mesh._state), "initialized", _NO_ARGUMENTS).call()


def whole_actors(state: ActorsState) -> ActorMesh[Any]:
    return ActorMesh(state, state.shape)


def spawn_actors(
    procs: Part,
    name: str,
    cls: type,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    *,
    port: int | None = None,
    restarts: Restart | None = None,
) -> ActorMesh[Any]:
    """Do what `ProcMesh.spawn` does; `port`: one that everybody knows, instead of a new one."""
    made = current.part(Spawner).spawn_actors(
        procs, name, cls, args, kwargs, whole_actors, port, restarts
    )
    return whole_actors(made)


_NO_ARGUMENTS = BoundCheck(lambda _self: None, 1)


def restore_actors(whole: tuple[Any, ...], shape: Shape) -> ActorMesh[Any]:
    number, name, cls, full, processes, restarted_by = whole
    state = ActorsState(
        cls=cls,
        number=number,
        name=name,
        shape=full,
        processes=processes,
        restarted_by=restarted_by,
        wrap=whole_actors,
    )
    return ActorMesh(known_here(state), shape)
