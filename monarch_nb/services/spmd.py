"""Ranks of a mesh as torchrun would have started them: its environment, and scripts run in them.

Nothing here listens. `MASTER_ADDR` is an address of rank 0's host, the loopback where all ranks are
of one host; who listens there, if anybody, is the `TCPStore` of the user's program.
`init_process_group()` meets in the mesh's store, and nothing listens at all.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.actors.endpoints import returns_future
from monarch_nb.net import wire
from monarch_nb.process.context import current_rank

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh

LOOPBACK: Final = "127.0.0.1"
MASTER_OF_MESH: Final = "MONARCH_NB_MASTER_ADDR"
"""The variable of the `MASTER_ADDR` that was set here: `env://` means the mesh's store there."""


class TorchrunPlace(NamedTuple):
    """A rank as torchrun counts: in all, and on its host, which is one of several (`group`).

    What counts as a host is the caller's: the real ones for cells and scripts, all but the last
    axis of a mesh for `SPMDActor`, as in Monarch.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    group: int

    def environment(self) -> dict[str, str]:
        values = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.group,
        }
        return {name: str(value) for name, value in values.items()}

    def groups(self, count: int, role: str) -> dict[str, str]:
        """Return what torchrun says besides: of hosts, and of the one role that there is."""
        return {
            "GROUP_WORLD_SIZE": str(count),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "ROLE_NAME": role,
        }


class SPMDActor(Actor):
    """One rank of a program for torchrun. Spawn it on the ranks that shall take part.

    Example:
        >>> actors = procs.spawn("spmd", SPMDActor)                            # doctest: +SKIP
        >>> addr, port = first(actors).get_host_port.call_one(None).get()      # doctest: +SKIP
        >>> actors.main.call(addr, port, ["train.py", "--steps", "10"]).get()  # doctest: +SKIP
    """

    @endpoint
    def get_host_port(self, use_ipaddr: bool | None = None) -> tuple[str, int]:
        """Return this host's name, or an address of it (`use_ipaddr`), and a port that is free
        now."""
        name = socket.gethostname()
        host = socket.gethostbyname(name) if use_ipaddr else name
        return host, wire.free_port()

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Set the variables that torchrun sets. The last axis of the mesh counts as the local one.

        Raises `ValueError` for a port that is none.
        """
        os.environ.update(_environment(master_addr, master_port))

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: Sequence[str]) -> bool:
        """Do `setup_env`, then run a script (`["train.py", "--lr", "1"]`) or a module (`["-m",
        "package.train"]`) as `__main__`. True when it has ended; what it raises is raised.

        Raises `ValueError` where nothing is named to run.
        """
        arguments = list(script_args)
        is_module = arguments[:1] == ["-m"]
        arguments = arguments[is_module:]
        if not arguments:
            raise ValueError(
                'nothing to run: give ["train.py", ...] or ["-m", "package.train", ...]'
            )
        os.environ.update(_environment(master_addr, master_port))
        before, sys.argv = sys.argv, arguments
        try:
            if is_module:
                runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            if end.code not in {None, 0}:
                raise RuntimeError(f"{arguments[0]} ended with exit code {end.code}") from end
        finally:
            sys.argv = before
        return True


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: bool | None = None,
) -> None:
    """Give all processes of a mesh torchrun's environment.

    Args:
        master_addr: of rank 0; by default the loopback where all processes are of one host, else
            the first process's host.
        master_port: by default one that is free there now.
        use_ipaddr: an address and not a name, where the host is looked up.

    Raises `ValueError` where only one of address and port is given.
    """
    if (master_addr is None) != (master_port is None):
        raise ValueError("give master_addr and master_port, or neither")
    actors: Any = proc_mesh.spawn("spmd_environment", SPMDActor)
    try:
        if master_addr is None:
            first = actors.slice(**dict.fromkeys(actors.extent.labels, 0))
            host, master_port = await first.get_host_port.call_one(use_ipaddr)
            master_addr = LOOPBACK if len(set(proc_mesh._agents())) == 1 else host
        await actors.setup_env.call(master_addr, master_port)
    finally:
        await actors.stop()


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: bool | None = None,
) -> None:
    """Do as `setup_torch_elastic_env_async`, and wait.

    Example:
        >>> setup_torch_elastic_env(procs)                                     # doctest: +SKIP
    """
    setup = returns_future(setup_torch_elastic_env_async)
    setup(proc_mesh, master_addr, master_port, use_ipaddr).get()


def _environment(master_addr: str, master_port: int) -> dict[str, str]:
    if not 0 < master_port < 1 << 16:
        raise ValueError(f"master_port must be from 1 to 65535, not {master_port}")
    point = current_rank()
    sizes = list(point.extent.sizes) or [1]
    world, local = len(point.extent.region.as_shape()), sizes[-1]
    place = TorchrunPlace(point.rank, world, point.rank % local, local, point.rank // local)
    master = {"MASTER_ADDR": master_addr, "MASTER_PORT": str(master_port)}
    master[MASTER_OF_MESH] = master_addr  # a world that is all of these ranks, and nobody else
    return place.environment() | place.groups(world // local, "rank") | master
