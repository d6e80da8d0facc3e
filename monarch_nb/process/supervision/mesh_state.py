"""What is known of one spawn of processes, by whoever holds a handle of it.

Rule: state and nothing that acts; the handles are in `proc_mesh.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch_nb.process.futures.future import Future, completed
from monarch_nb.process.supervision.supervision import MeshState

if TYPE_CHECKING:
    from monarch_nb.meshes.actor_mesh import ActorsState
    from monarch_nb.meshes.proc_mesh import ProcMesh


class Held:
    """Kept by every handle of a mesh and of what lives on it; when the last goes, the mesh is
    garbage."""

    __slots__ = ("__weakref__",)


class ProcsState(MeshState):
    """One spawn of processes."""

    kind = "proc"

    def __init__(self, agents: list[int], **rest: Any) -> None:
        super().__init__(**rest)
        self.agents = agents
        self.pids: dict[int, int] = {}
        self.actors: list[ActorsState] = []
        self.boot_port = 0
        self.generation = 0  # counts heals: a new place to meet for process groups
        self.initialized: Future[Any] = completed(True)
        self.respawn: Callable[[list[int]], Future[Any]] | None = None
        self.host_labels: tuple[str, ...] = ()
        self.shared = False
        self.streams: dict[str, object] = {}  # of tensors, by name: their engines
        self.when_garbage: Callable[[], None] | None = None
        self._held: weakref.ref[Held] | None = None

    def view(self) -> ProcMesh:
        from monarch_nb.meshes.proc_mesh import ProcMesh  # it is made of this

        return ProcMesh(self, self.shape)

    def store(self, run_dir: Path) -> str:
        """The file where this generation's process groups meet."""
        return str(run_dir / f"store-{self.number:x}-{self.generation}")

    def held_by_handles(self) -> Held | None:
        """The token of the handles; None where garbage collection means nothing."""
        if self.when_garbage is None:
            return None
        found = self._held() if self._held is not None else None
        if found is None:
            found = Held()
            self._held = weakref.ref(found)
            weakref.finalize(found, self._dropped).atexit = False
        return found

    def _dropped(self) -> None:
        # a mesh that was sent to somebody lives as long as its owner
        if not self.shared and self.ended is None and self.when_garbage is not None:
            self.when_garbage()
