"""`torch.distributed` finds its peers without a listening socket and without a line of the user's.

`init_process_group()` with its default `env://` uses a `FileStore` in the mesh's private run dir.
PyTorch's own way would start a TCP store that listens on every interface without authentication. A
`TCPStore` that the user's code makes listens on the loopback only. An address that is not this
host's is left to PyTorch. Peers wait for each other in Python, where an interrupt reaches them.

Each group of a place meets under a number. The file says which is next, the first under which
nobody has met: ranks that counted for themselves would never agree again after one has given up.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlparse

from monarch_nb.net import wire
from monarch_nb.worker.groups import collectives, peer_deaths

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})
DEFAULT_TIMEOUT: Final = dt.timedelta(seconds=60)
POLL_S: Final = 0.002
MAX_POLL_S: Final = 0.05

_MET: Final = "met"
INIT: Final = "init_process_group"
_FEWER: Final = (
    ". The default process group is that of the whole mesh; a cell on some of its ranks has "
    "theirs: group=mesh.slice(...).group()"
)
APART: Final = "ranks "
"""So begin the names of groups that need no default group."""

_TCP_STORE_TAKES: Final = (
    "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip


@dataclasses.dataclass
class Place:
    """Where the groups of one world meet, and who this process is in it.

    `marks` is the folder in which ranks say that they have left; empty for the world of the cells,
    which nobody leaves.
    """

    path: str
    rank: int
    size: int
    marks: str = ""
    group: int = 0  # all before have met
    limit_s: float = float("inf")  # for peers to come, if the group's timeout is longer
    processes: dict[int, str] = dataclasses.field(default_factory=dict)  # of who has been met

    def gone(self, ranks: list[int]) -> list[int]:
        """Those of the ranks that have left."""
        return [rank for rank in ranks if self.marks and self.mark(rank).exists()]

    def known(self, ranks: list[int]) -> dict[int, str]:
        """The processes of those that have been met."""
        return {rank: self.processes[rank] for rank in ranks if rank in self.processes}

    def mark(self, rank: int) -> Path:
        """The file that says that this rank has left."""
        return Path(self.marks, f"left-{rank}")


_places: list[Place] = []  # the last one counts


def prepare(path: str, rank: int, size: int) -> None:
    """Remember where the peers meet, and make `env://` mean it."""
    _places[:] = [Place(path, rank, size)]
    collectives.met[:] = [_met_by_cells]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "torch" in sys.modules:
        _install()


def path() -> str:
    """The file at which peers meet now."""
    return _places[-1].path


def enter(place: Place) -> None:
    """Until `leave`, groups meet in another place."""
    _places.append(place)


def leave() -> None:
    """Back to the place before."""
    _places.pop()


def regroup(path: str, rank: int, size: int) -> None:
    """Some peers are new, or gone for good: leave the old group, meet at a new place."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    move(path, rank, size)


def move(path: str, rank: int, size: int, limit_s: float = float("inf")) -> None:
    """The next groups meet at a new place; the next of all within `limit_s`."""
    _places[:] = [Place(path, rank, size, limit_s=limit_s)]


def _install() -> None:
    # torch.distributed.rendezvous names a function too, and it hides the module
    module: Any = importlib.import_module("torch.distributed.rendezvous")
    handlers = module._rendezvous_handlers
    original = handlers["env"]

    def meet(url: str, timeout: dt.timedelta = DEFAULT_TIMEOUT, **rest: Any) -> Iterator[Any]:
        if os.environ.get("MASTER_ADDR", "") not in LOCAL_NAMES:
            return original(url, timeout=timeout, **rest)  # type: ignore[no-any-return]
        return _meet_in_file(url, timeout)

    handlers["env"] = meet
    distributed: Any = importlib.import_module("torch.distributed")
    distributed.TCPStore = module.TCPStore = _on_loopback(distributed.TCPStore)


def _meet_in_file(url: str, timeout: dt.timedelta) -> Iterator[Any]:
    torch_distributed: Any = importlib.import_module("torch.distributed")
    place = _places[-1]
    asked = parse_qs(urlparse(url).query)
    rank = int(asked.get("rank", [os.environ.get("RANK", place.rank)])[0])
    size = int(asked.get("world_size", [os.environ.get("WORLD_SIZE", place.size)])[0])
    store = torch_distributed.FileStore(place.path)  # with a size, the last to leave removes it
    store.set_timeout(timeout)
    while True:
        group = torch_distributed.PrefixStore(f"group-{place.group}", store)
        if not group.check([_MET]):
            break
        place.group += 1
    limit_s, place.limit_s = min(timeout.total_seconds(), place.limit_s), float("inf")
    try:
        _wait_for_peers(group, place, rank, list(range(size)), limit_s, INIT)
    except BaseException:
        _forget_the_group()
        raise
    yield group, rank, size
    raise RuntimeError(
        "a process group over the mesh's store cannot be re-made in place; init it again"
    )


def meet(name: str, ranks: list[int], timeout: dt.timedelta, what: str) -> Any:
    """The store in which these ranks of the world meet under `name`, when all of them are there.

    Raises `TimeoutError`, which names those that did not come to `what`. Any thread.
    """
    torch_distributed: Any = importlib.import_module("torch.distributed")
    place = _places[-1]
    store = torch_distributed.FileStore(place.path)
    store.set_timeout(timeout)
    number = 0
    while (group := torch_distributed.PrefixStore(f"{name}-{number}", store)).check([_MET]):
        number += 1
    _wait_for_peers(group, place, place.rank, ranks, timeout.total_seconds(), what)
    return group


def world() -> Place:
    """Where groups meet now."""
    return _places[-1]


def _met_by_cells() -> dict[int, str]:
    """A script's ranks leave it alive, and say so themselves."""
    return _places[-1].processes if is_of_cells() else {}


def is_of_cells() -> bool:
    """Whether the world is the mesh's, and not that of a script."""
    return len(_places) == 1


def _wait_for_peers(
    store: Any, place: Place, rank: int, ranks: list[int], limit_s: float, what: str
) -> None:
    """PyTorch would wait where no interrupt is seen, and for those that will never come too."""
    store.set(f"here-{rank}", peer_deaths.myself())
    try:
        with collectives.waiting(what):
            _find(ranks, store, place, limit_s, what)
    except BaseException:  # an interrupt too: who comes later is not to count on this rank
        store.delete_key(f"here-{rank}")
        raise
    store.set(_MET, "1")
    place.processes.update({each: store.get(f"here-{each}").decode() for each in ranks})
    collectives.lost.watch(place.processes.values())


def _forget_the_group() -> None:
    """PyTorch has counted it already, and would look for its peers under the next number."""
    world: Any = importlib.import_module("torch.distributed.distributed_c10d")._world
    if world.default_pg is None:
        world.group_count = 0


def _find(missing: list[int], store: Any, place: Place, limit_s: float, what: str) -> None:
    deadline, poll_s = time.monotonic() + limit_s, POLL_S
    while True:
        gone = place.gone(missing)  # before looking who is here: who was and left has been here
        missing = [peer for peer in missing if not store.check([f"here-{peer}"])]
        if not missing:
            return
        dead = collectives.lost.among(place.known(missing))
        if lost := sorted({*gone, *dead}.intersection(missing)):
            raise RuntimeError(f"{_ranks(lost)} ended before {what}")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{_ranks(missing)} did not come to {what} within {dt.timedelta(seconds=limit_s)}"
                f"{_FEWER if what == INIT else ''}"
            )
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, MAX_POLL_S)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _on_loopback(original: Any) -> Any:
    """A `TCPStore` that listens where only this host can reach it."""

    class TCPStore(original):  # type: ignore[misc]
        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            *rest: Any,
            **options: Any,
        ) -> None:
            options |= zip(_TCP_STORE_TAKES, rest, strict=False)
            local = is_master and host_name in LOCAL_NAMES
            if local and options.get("master_listen_fd") is None:
                options["master_listen_fd"], port = wire.listen_on_loopback(port)
            super().__init__(host_name, port, world_size, is_master, **options)

    TCPStore.__module__, TCPStore.__qualname__ = original.__module__, original.__qualname__
    return TCPStore
