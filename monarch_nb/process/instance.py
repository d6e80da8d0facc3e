"""Who runs: an actor as seen from inside, and what is known of the message that it handles.

Rule: the hot path stores one small object per message in a context variable; where none is set (the
client, a thread of one's own), the process's root is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from monarch_nb.core.shape.extent import Point
from monarch_nb.process.ids import ActorId, ProcId


class InstanceControl(Protocol):
    """What an `Instance` asks of whoever runs it."""

    @property
    def wants_returns(self) -> bool:
        """Whether it has `_handle_undeliverable_message`."""

    def proc_mesh(self) -> Any:
        """Return a handle of the processes on which it was spawned."""

    def stop_self(self, reason: str) -> None: ...
    def abort_self(self, reason: str) -> None: ...


class Instance:
    """An actor as seen from inside: `context().actor_instance`; the client's is named root."""

    def __init__(
        self,
        control: InstanceControl,
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
        self._creator = creator
        self._control = control

    @property
    def wants_returns(self) -> bool:
        return self._control.wants_returns

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
    def proc_mesh(self) -> Any:
        """The `ProcMesh` on which this actor was spawned."""
        return self._control.proc_mesh()

    @property
    def proc(self) -> Any:
        """The process this actor lives in, as a `ProcMesh` of one."""
        mesh = self.proc_mesh
        point = Point(self.rank.rank, mesh.extent)
        return mesh.slice(**{label: point[label] for label in mesh.extent.labels})

    def stop(self, reason: str = "stopped by itself") -> None:
        """Stop this actor after the endpoint that runs now."""
        self._control.stop_self(reason)

    def abort(self, reason: str = "aborted") -> None:
        """Fail this actor: its owner is told `reason`."""
        self._control.abort_self(reason)

    kill = abort

    def belong_to(self, owner: tuple[int, int]) -> None:
        """Have another owner from now on: a process, and a port there."""
        self.owner = owner

    def tag_calls(self, tag: int) -> None:
        """Make the calls from now on for this notebook cell; 0: for none."""
        self.tag = tag

    def move_to(self, point: Point) -> None:
        """Give it its place now that its mesh was healed or shrunk."""
        self.rank = point

    def __str__(self) -> str:
        if not self._creator:
            return "<root>"
        place = self.rank if len(self.rank) else "{}"
        return f"{self._creator}.<{self.class_name} {self.name}{place}>"

    __repr__ = __str__


@dataclass(slots=True, eq=False, repr=False)
class CallContext:
    """What the hot path knows of the message that runs; `labels` and `sizes` are those of the mesh
    or slice that was called, `rank` the place in it."""

    instance: Instance
    labels: Sequence[str]
    sizes: Sequence[int]
    rank: int
    tag: int
    method: str = ""


here: ContextVar[CallContext | None] = ContextVar("monarch_nb_here", default=None)
