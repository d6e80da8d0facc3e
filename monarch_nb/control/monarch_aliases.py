"""Names of Monarch's first releases and of the articles about it, on top of today's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from monarch_nb.actors.endpoints import returns_future
from monarch_nb.meshes.proc_mesh import ProcMesh, this_host
from monarch_nb.process.futures.future import Future

M = TypeVar("M")


def proc_mesh(
    *, gpus: int = 1, hosts: int = 1, env: Mapping[str, str | None] | None = None
) -> Future[ProcMesh]:
    """Start processes on this host: `mesh = await proc_mesh(gpus=4, env={...})`, when they are up.

    Args:
        gpus: processes on the host.
        hosts: 1; other hosts are attached with `attach_to_workers`.
        env: environment changes for the processes; None removes.
    """
    if hosts != 1:
        raise ValueError(
            f"hosts={hosts}: proc_mesh is for this host; use attach_to_workers(...) for more"
        )
    mesh = this_host().spawn_procs(per_host={"gpus": gpus}, env=env)

    async def ready() -> ProcMesh:
        await mesh.initialized
        return mesh

    return returns_future(ready)()


def heal_mesh(mesh: M, *, shrink: bool = False) -> M:
    """Bring back what a mesh has lost: `mesh = heal_mesh(mesh)` after a `DeviceMeshError`.

    Args:
        mesh: a process mesh or an actor mesh that this process spawned.
        shrink: keep the survivors as a smaller mesh instead.
    """
    found: Any = mesh
    return found.heal(shrink=shrink)  # type: ignore[no-any-return]  # of any kind of mesh
