"""Who is running, and in which message: `context()`, `current_rank()`, `current_size()`.

Rule: the hot path stores one small object per message in a context variable; everything a user
reads is built from it on demand. Where nothing is set (the client, a thread of one's own) the
process's root is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.process import current
from monarch_nb.process.ids import ActorId, ProcId

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.futures.future import Future


class Instance:
    """An actor as seen from inside: `context().actor_instance`. The client is one too, named
    root."""

    def __init__(
        self,
        *,
        process: int,
        port: int,
        name: str,
        class_name: str,
        point: Point,
        creator: str,
        owner: tuple[int, int],
    ) -> None:
        self.process = process
        self.port = port
        self.name = name
        self.class_name = class_name
        self.rank = point
        self.owner = owner
        self.tag = 0
        self.wants_returns = False  # it has `_handle_undeliverable_message`
        self._creator = creator
        self._proc_mesh: Callable[[], ProcMesh] | None = None
        self._stop: Callable[[str], Future[None]] | None = None
        self._abort: Callable[[str], None] | None = None

    @property
    def actor_id(self) -> ActorId:
        """The address object of this actor."""
        return ActorId(f"{self.name}[{self.rank.rank}]", self.name, self.proc_id, self.port)

    @property
    def proc_id(self) -> ProcId:
        """The process's id as text."""
        return ProcId(f"{self.process:016x}")

    @property
    def creator(self) -> str:
        """The chain of owners of this actor's spawner, as text."""
        return self._creator

    @property
    def proc_mesh(self) -> ProcMesh:
        """The process mesh on which this actor was spawned."""
        if self._proc_mesh is None:
            raise RuntimeError("the root has no process mesh; use this_proc()")
        return self._proc_mesh()

    @property
    def proc(self) -> ProcMesh:
        """The process this actor lives in, as a mesh of one."""
        mesh = self.proc_mesh
        point = Point(self.rank.rank, mesh.extent)
        return mesh.slice(**{label: point[label] for label in mesh.extent.labels})

    def stop(self, reason: str = "stopped by itself") -> None:
        """Stop this actor after the endpoint that runs now."""
        if self._stop is not None:
            self._stop(reason)

    def abort(self, reason: str = "aborted") -> None:
        """Fail this actor: its owner is told `reason`."""
        if self._abort is not None:
            self._abort(reason)

    kill = abort

    def set_system(self) -> None:
        """Mark as one of the runtime's own actors (kept out of views)."""
        self.system = True

    def __str__(self) -> str:
        if not self._creator:
            return "<root>"
        place = self.rank if len(self.rank) else "{}"
        return f"{self._creator}.<{self.class_name} {self.name}{place}>"

    __repr__ = __str__


class Here:
    """What the hot path knows of the message that runs."""

    __slots__ = ("instance", "labels", "method", "rank", "sizes", "tag")

    def __init__(
        self, instance: Instance, labels: Any, sizes: Any, rank: int, tag: int, method: str = ""
    ) -> None:
        self.instance = instance
        self.labels = labels
        self.sizes = sizes
        self.rank = rank
        self.tag = tag
        self.method = method


here: ContextVar[Here | None] = ContextVar("monarch_nb_here", default=None)


def current_instance() -> Instance:
    """The actor that runs in this context, or the process's root."""
    found = here.get()
    return current.runtime().root if found is None else found.instance


def current_sender() -> Instance | None:
    """The actor that runs in this context, if it wants to be told what nobody got."""
    found = here.get()
    return found.instance if found is not None and found.instance.wants_returns else None


def current_tag() -> int:
    """The number of the notebook cell on whose behalf this context runs; 0 for none."""
    found = here.get()
    return current.runtime().root.tag if found is None else found.tag


@final
@dataclass(frozen=True)
class Context:
    """`actor_instance`: who runs; `message_rank`: where in the mesh or slice that was called."""

    actor_instance: Instance
    message_rank: Point


def context() -> Context:
    """The current actor and its place in the message that runs; starts the client at first use.

    Example:
        >>> context().actor_instance.name          # doctest: +SKIP
        'root'
    """
    return Context(current_instance(), current_rank())


def current_rank() -> Point:
    """Position inside the mesh or slice that the running message was sent to:
    `current_rank()["gpus"]`."""
    found = here.get()
    if found is None:
        return current.runtime().root.rank
    return Point(found.rank, Extent(found.labels, found.sizes))


def current_size() -> dict[str, int]:
    """Sizes of the same mesh or slice: `{"hosts": 1, "gpus": 4}`."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """The full address of the running actor, as text."""
    return str(current_instance().actor_id)
