"""`StoreJob`: the hosts of a program that torchrun, or its like, has started on each of them."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final, Protocol

from monarch_nb.control.hosts.attach import attach_to_workers
from monarch_nb.control.jobs.job import JobState, JobTrait
from monarch_nb.control.jobs.workers import Starting
from monarch_nb.meshes.proc_mesh import HostMesh
from monarch_nb.net import wire

_KEY: Final = "monarch/spmd/workers/{}"
_END_S: Final = 6.0  # a host ends its ranks within 5


class StoreLike(Protocol):
    """The part of a `torch.distributed.Store` that is used; `get` waits until the key is there."""

    def set(self, key: str, value: bytes) -> object: ...
    def get(self, key: str) -> bytes: ...


class StoreJob(JobTrait):
    """A mesh of the hosts on which torchrun runs this program. Made by `from_store`.

    Its hosts are processes of the local rank 0 of each host, and end with it. `kill` ends the ranks
    that were spawned on them, and leaves the hosts.

    Args:
        worker_addrs: where the hosts are offered.
        name: of the mesh.

    Example:
        >>> job = StoreJob.from_store(store)                     # doctest: +SKIP
        >>> if job is not None:                                  # rank 0 of all
        ...     hosts = job.state().monarch_worker
    """

    def __init__(self, worker_addrs: list[str], name: str = "monarch_worker") -> None:
        super().__init__()
        self._worker_addrs = list(worker_addrs)
        self._name = name
        self._job_attached: HostMesh | None = None

    @classmethod
    def from_store(
        cls,
        store: StoreLike,
        *,
        monarch_port: int = 0,
        name: str = "monarch_worker",
        transport: str = "ipc",
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
    ) -> StoreJob | None:
        """Offer each host, and return the job on rank 0, None on the others. All ranks call it.

        Args:
            store: which all ranks share, as `TCPStore`: the addresses of the hosts are told by it.
            monarch_port: at which each host listens; 0: one that is free.
            transport: "ipc" where all ranks are on one machine. "tcp": each host listens at the
                address from which it reaches MASTER_ADDR, for who has a key of its allow-list.
            rank, local_rank, world_size, local_world_size: None: what torchrun says in the
                environment.

        Raises:
            LaunchError: this host cannot be offered, as where the port is taken.
            OSError: no network leads to MASTER_ADDR.
            RuntimeError: the environment does not say what was not given.
            ValueError: another transport, or local ranks that do not make up the world.
        """
        number, local = _number("RANK", rank), _number("LOCAL_RANK", local_rank)
        size = _number("WORLD_SIZE", world_size)
        local_size = _number("LOCAL_WORLD_SIZE", local_world_size)
        if local_size < 1 or size % local_size:
            raise ValueError(
                f"WORLD_SIZE ({size}) must be divisible by LOCAL_WORLD_SIZE ({local_size})"
            )
        address = _address(transport, monarch_port)
        if local == 0:
            worker = Starting({}, address).started()
            store.set(_KEY.format(number // local_size), worker.address.encode())
        if number != 0:
            return None
        return cls([store.get(_KEY.format(at)).decode() for at in range(size // local_size)], name)

    def state(self, cached_path: str | None = None) -> JobState:
        """Return the host mesh. It is not saved: the hosts end with this program."""
        return super().state(cached_path)

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: there is nothing to find again."""
        del spec
        return False

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("a StoreJob cannot run a client script: it is part of one")

    def _state(self) -> JobState:
        if self._job_attached is None:
            self._job_attached = attach_to_workers(workers=self._worker_addrs, name=self._name)
        return JobState({self._name: self._job_attached})

    def _kill(self) -> None:
        attached, self._job_attached = self._job_attached, None
        if attached is not None:
            with contextlib.suppress(RuntimeError, TimeoutError):  # the program has shut them down
                attached.stop().get(_END_S)

    def _load_fields(self, fields: dict[str, Any]) -> None:
        super()._load_fields(fields)
        self._job_attached = None


def _number(name: str, given: int | None) -> int:
    return int(_said(name)) if given is None else given


def _said(name: str) -> str:
    found = os.environ.get(name)
    if found is None:
        raise RuntimeError(f"StoreJob.from_store needs {name} in the environment: torchrun sets it")
    return found


def _address(transport: str, port: int) -> str | None:
    if transport == "ipc":
        return None
    if transport != "tcp":
        raise ValueError(f"unsupported transport {transport!r}; there are 'ipc' and 'tcp'")
    return wire.address_towards(_said("MASTER_ADDR"), port)
