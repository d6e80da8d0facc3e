"""`ActorMesh`: the actors of one `spawn`, and its slices; what you call endpoints on.

A handle is small and can be sent anywhere; only the handles of the process that spawned know how to
stop and heal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from monarch_nb.actors.definition import BoundCheck, endpoints_of
from monarch_nb.actors.endpoints import Endpoint, PlainMethod, endpoint_of, returns_future
from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.core.wire.frames import ERROR, Message
from monarch_nb.errors import ActorError
from monarch_nb.process import current
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.calls import GatherCall, Target
from monarch_nb.process.futures.future import Future, completed
from monarch_nb.process.supervision.supervision import MeshState

if TYPE_CHECKING:
    from monarch_nb.process.supervision.mesh_state import ProcsState

A = TypeVar("A")


class ActorsState(MeshState):
    """One spawn. `number` is the actors' port, the same in every process of the mesh."""

    kind = "actor"

    def __init__(self, cls: type, procs: ProcsState | None, **rest: Any) -> None:
        super().__init__(**rest)
        self.cls = cls
        self.procs = procs
        self.proc_ranks: tuple[int, ...] = ()  # in `procs`, of the processes it was spawned on
        self.initialized: Future[Any] = completed(None)
        self.respawn: Callable[[list[int]], Future[Any]] | None = None
        self.held: Any = None

    def view(self) -> ActorMesh[Any]:
        return ActorMesh(self, self.shape)


@final
class ActorMesh(MeshTrait, Generic[A]):
    """The instances of an actor class on the processes of a mesh (or on a slice of it).

    Every endpoint of the class is an attribute: `mesh.step.call(...)`. `slice`, `split`, `flatten`,
    `rename`, `sizes` work as on all meshes.

    Example:
        >>> trainers = procs.spawn("trainer", Trainer)           # doctest: +SKIP
        >>> trainers.slice(gpus=0).step.call_one(batch).get()    # doctest: +SKIP
    """

    def __init__(self, state: ActorsState, shape: Shape) -> None:
        self._state = state
        self._shape = shape
        self._cls = state.cls
        self._ranks = shape.ranks()
        self._targets: dict[str, Target] = {}
        self._answer_shape = Shape(shape.labels, Slice.new_row_major(shape.ndslice.sizes))
        self._held = state.procs.held_by_handles() if state.procs is not None else None

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self._shape.labels)

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
        """Stop the actors: each finishes the endpoint it runs, drops its queue and runs
        `__cleanup__`."""
        if not self._state.owned or len(self._ranks) != len(self._state.processes):
            raise RuntimeError(
                "only the process that spawned an actor mesh can stop it, and not a slice"
            )
        return current.runtime().meshes.stop_actors(self._state, reason)

    def heal(self, *, shrink: bool = False) -> ActorMesh[A]:
        """Bring lost ranks back: new processes at the same coordinates, actors made again from
        their arguments.

        Args:
            shrink: do not start anything; return a smaller mesh of the ranks that live.
        """
        return current.runtime().healing.actors(self, shrink=shrink)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any
        marked = endpoints_of(self._cls).get(name)
        if marked is not None:
            found = endpoint_of(self, name, marked)
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
            state.check(self._ranks, f"{state.name}.{method}")
        found = self._targets.get(method)
        if found is None or found.version != state.version:
            processes = [state.processes[rank] for rank in self._ranks]
            found = Target(state, method, processes, self._ranks, self._answer_shape, self._held)
            self._targets[method] = found
        return found

    def __await__(self) -> Generator[Any, None, ActorMesh[A]]:
        """`actors = await procs.spawn(...)`: waits for the constructors."""
        yield from self.initialized.__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = self._state
        if state.procs is not None:
            state.procs.shared = True
        whole = (state.number, state.name, state.cls, state.shape, list(state.processes))
        return restore_actors, (whole, self._shape)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{label}={size}" for label, size in self.sizes.items())
        kind = f"{self._cls.__module__}.{self._cls.__qualname__}"
        lost = [rank for rank in self._ranks if rank in self._state.lost]
        state = (self._state.ended and "stopped") or (f"lost ranks {lost}" if lost else "ready")
        return f"ActorMesh(class={kind}, name={self._state.name!r}, shape={{{sizes}}}, {state})"


@returns_future
async def _constructed(mesh: ActorMesh[Any]) -> None:
    """For a handle that came by message: the actors answer once they are there."""
    await Endpoint(mesh._state.view(), "initialized", _NO_ARGUMENTS).call()


_NO_ARGUMENTS = BoundCheck(lambda _self: None, 1)


def restore_actors(whole: tuple[Any, ...], shape: Shape) -> ActorMesh[Any]:
    """A handle as it comes out of a pickle: the owner's own state where it is known."""
    number, name, cls, full, processes = whole
    runtime = current.running()
    known = runtime.supervision.states.get(number) if runtime is not None else None
    if isinstance(known, ActorsState):
        return ActorMesh(known, shape)
    state = ActorsState(
        cls,
        None,
        number=number,
        name=name,
        owner_port=0,
        shape=full,
        processes=processes,
        owned=False,
    )
    if runtime is not None:
        runtime.handles.adopt(state)
    return ActorMesh(state, shape)


class SpawnCall(GatherCall):
    """Waits for every constructor; all errors are gathered, so that one failure tells of all
    ranks."""

    __slots__ = ("_errors", "_gone", "on_failure")
    on_failure: Callable[[list[int], list[Message]], None]

    def expect(self) -> None:
        super().expect()
        self._errors: list[Message] = []
        self._gone: dict[int, Exit] = {}

    def deliver(self, message: Message) -> None:
        if message.rank >= len(self._answers) or self._answers[message.rank] is not None:
            return
        self._answers[message.rank] = message
        if message.kind == ERROR:
            self._errors.append(message)
        self._count_down()

    def lost(self, ended: Exit) -> None:
        for index, process in enumerate(self.target.processes):
            is_waited_for = self._answers[index] is None and index not in self._gone
            if process == ended.process and is_waited_for:
                self._gone[index] = ended
                self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if self._missing or not self._close():
            return
        if self._errors:
            self.on_failure(self._failed(), self._errors)
            self._arrive(self._errors[0])
        elif self._gone:
            self._arrive(next(iter(self._gone.values())))
        else:
            self._set_result(None)

    def _failed(self) -> list[int]:
        return sorted(self.target.ranks[each.rank] for each in self._errors)

    def _error_of(self, message: Message | Exit) -> BaseException:
        error = super()._error_of(message)
        if isinstance(error, ActorError) and len(self._errors) > 1:
            error.message += f" The constructor raised on ranks {self._failed()}."
        return error

    can_be_cancelled = False  # an interrupted wait undoes no spawn; stop the mesh to end it

    def cancel(self) -> bool:
        return False
