"""`torch.distributed` finds its peers without a listening socket and without a line of the user's.

`init_process_group()` with its default `env://` uses the store of the mesh, which its owner keeps
(`keys.py`), on one host and on many. PyTorch's own way would start a TCP store that listens on
every interface without authentication. A `TCPStore` that the user's code makes listens on the
loopback only. An address of the user's that is not this host's is left to PyTorch. Peers wait for
each other in Python, where an interrupt reaches them.

Each group of a place meets under a number. The keys say which is next, the first under which nobody
has met: ranks that counted for themselves would never agree again after one has given up.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import parse_qs, urlparse

from monarch_nb.net import wire
from monarch_nb.services.spmd import MASTER_OF_MESH
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Store
from monarch_nb.worker.groups.meeting import mesh_store
from monarch_nb.worker.groups.meeting.deaths import Peer, PeerDeaths
from monarch_nb.worker.groups.meeting.keys import Keys
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups, Wait

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})
DEFAULT_TIMEOUT: Final = dt.timedelta(seconds=60)
NOW_S: Final = 5.0
"""For keys that are there."""

_MET: Final = "met"
INIT: Final = "init_process_group"
_FEWER: Final = (
    ". The default process group is that of the whole mesh; a cell on some of its ranks has "
    "theirs: group=mesh.slice(...).group()"
)
APART: Final = "ranks "
"""So begin the names of groups that need no default group."""

Met = tuple[Store, int, int]
"""Store, rank and size: what PyTorch asks of a rendezvous."""
Handler = Callable[..., Iterator[Met]]

_TCP_STORE_TAKES: Final = (
    "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip


def prepare_environment(interface: str | None, network: str | None) -> None:
    """Let whatever looks for peers by the environment look on this interface, and nowhere where it
    is unknown. What is set already stays.

    NCCL reads its variable once: where this host has a `network` with others, it is that from the
    beginning, as the mesh may have more hosts later. Its server of reports (RAS) stays off: any
    user of the host may ask it.
    """
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if (found := network or interface) is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", found)
    os.environ.setdefault("NCCL_RAS_ENABLE", "0")


def use_network(interface: str | None, loopback: str | None) -> None:
    """Look for peers on this interface from now on, as the mesh has more hosts than one; unless
    another one than the loopback was chosen."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if loopback is not None and os.environ.get(name) == loopback:
            del os.environ[name]
    prepare_environment(interface, interface)


def install(groups: ProcessGroups) -> None:
    """Make `env://` mean the place where the groups of this process meet."""
    # torch.distributed.rendezvous names a function too, and it hides the module
    module = c10d.load("torch.distributed.rendezvous")
    handlers: dict[str, Handler] = module._rendezvous_handlers
    original = handlers["env"]

    def meet(url: str, timeout: dt.timedelta = DEFAULT_TIMEOUT, **rest: object) -> Iterator[Met]:
        master = os.environ.get("MASTER_ADDR", "")
        if master not in LOCAL_NAMES and master != os.environ.get(MASTER_OF_MESH):
            return original(url, timeout=timeout, **rest)
        return _meet_by_mesh(groups, url, timeout)

    handlers["env"] = meet
    distributed = c10d.load("torch.distributed")
    loopback = _on_loopback(distributed.TCPStore)
    vars(distributed)["TCPStore"] = vars(module)["TCPStore"] = loopback


def _meet_by_mesh(groups: ProcessGroups, url: str, timeout: dt.timedelta) -> Iterator[Met]:
    place = groups.world
    asked = parse_qs(urlparse(url).query)
    rank = int(asked.get("rank", [os.environ.get("RANK", place.rank)])[0])
    size = int(asked.get("world_size", [os.environ.get("WORLD_SIZE", place.size)])[0])
    if groups.is_alone:
        yield c10d.own_store(), rank, size
        return
    keys, place.group = _next(groups.keys(place), "group", place.group)
    limit_s, place.limit_s = min(timeout.total_seconds(), place.limit_s), float("inf")
    ranks = list(range(size))
    _wait_for_peers(groups, keys, place, rank, ranks, limit_s, INIT)
    yield _store(groups, keys, place, ranks, timeout), rank, size
    raise RuntimeError(
        "a process group over the mesh's store cannot be re-made in place; init it again"
    )


def meet(
    groups: ProcessGroups, name: str, ranks: list[int], timeout: dt.timedelta, what: str
) -> Store:
    """Return the store in which these ranks of the world meet under `name`, when all are there.

    Raises `TimeoutError`, which names those that did not come to `what`. Any thread.
    """
    if groups.is_alone:
        return c10d.own_store()
    place = groups.world
    keys, _ = _next(groups.keys(place), name, 0)
    _wait_for_peers(groups, keys, place, place.rank, ranks, timeout.total_seconds(), what)
    return _store(groups, keys, place, ranks, timeout)


def _next(keys: Keys, name: str, number: int) -> tuple[Keys, int]:
    # the first from this number on under which nobody has met
    while not (group := keys.under(f"{name}-{number}")).missing([_MET]):
        number += 1
    return group, number


def _store(
    groups: ProcessGroups, keys: Keys, place: Place, ranks: list[int], timeout: dt.timedelta
) -> Store:
    met = {rank: peer for rank, peer in place.processes.items() if rank in ranks}

    @contextlib.contextmanager
    def waiting() -> Iterator[Callable[[], None]]:
        with groups.waiting(mesh_store.WAIT) as wait:
            yield lambda: _check(wait, groups.deaths, met)

    made = mesh_store.make(keys, waiting, timeout)
    groups.keep_store(made)
    return made


def _check(wait: Wait, deaths: PeerDeaths, met: Mapping[int, Peer]) -> None:
    if wait.ended:
        raise RuntimeError(f"{wait.what}: {wait.ended}")
    if dead := deaths.among(met):
        has = "has" if len(dead) == 1 else "have"
        raise RuntimeError(f"{wait.what}: {_ranks(dead)} {has} died. Type: %mesh heal")


def _wait_for_peers(
    groups: ProcessGroups, keys: Keys, place: Place, rank: int, ranks: list[int], limit_s: float,
    what: str,
) -> None:  # fmt: skip
    # PyTorch would wait where no interrupt is seen, and for those that will never come too
    here = _here(rank)
    try:
        keys.put({here: Peer.myself(groups.proc.id).to_text().encode()})
        keys.forget(_gave_up(rank))
        with groups.waiting(what) as wait:
            peers = _Meeting(groups, keys, place, ranks, wait).peers(limit_s)
    except BaseException:  # an interrupt too: who comes later is not to count on this rank
        keys.forget(here)
        keys.put({_gave_up(rank): b""})
        raise
    keys.put({_MET: b""})
    place.processes.update(peers)
    groups.deaths.watch(peers.values())


class _Meeting:
    """Ranks that wait for each other under the same keys."""

    def __init__(
        self, groups: ProcessGroups, keys: Keys, place: Place, ranks: list[int], wait: Wait
    ) -> None:
        self._deaths = groups.deaths
        self._place_keys = groups.keys(place)
        self._keys = keys
        self._place = place
        self._ranks = ranks
        self._wait = wait

    def peers(self, limit_s: float) -> dict[int, Peer]:
        """Return who they are when all are there. Raises `TimeoutError` naming those that are not,
        `RuntimeError` naming those that never will be."""
        deadline = time.monotonic() + limit_s
        self._wait.misses(self._missing)
        here = [_here(rank) for rank in self._ranks]
        leave = self._ranks if self._place.can_be_left else []
        while True:
            try:
                found = self._keys.wait_for(here, deadline - time.monotonic(), self._check, leave)
            except TimeoutError:
                self._too_late(limit_s)
                continue
            if not found.missing:
                texts = (bytes(value).decode() for value in found.values)
                return dict(zip(self._ranks, map(Peer.from_text, texts), strict=True))
            leave = self._missing()  # who was here and has left is not waited for
            if gone := self._place_keys.left(leave):
                raise self._ended(gone)

    def _missing(self) -> list[int]:
        by_key = {_here(rank): rank for rank in self._ranks}
        return [by_key[key] for key in self._keys.missing(list(by_key))]

    def _check(self) -> None:
        if self._wait.ended:
            raise RuntimeError(f"{self._wait.what}: {self._wait.ended}")
        met = {r: peer for r, peer in self._place.processes.items() if r in self._ranks}
        if dead := self._deaths.among(met):
            raise self._ended(dead)

    def _too_late(self, limit_s: float) -> None:
        if missing := self._missing():
            # others whose time was over at once have gone, and did come
            by_key = {_gave_up(rank): rank for rank in missing}
            missing = [by_key[key] for key in self._keys.missing(list(by_key))] or missing
            what = self._wait.what
            raise TimeoutError(
                f"{_ranks(missing)} did not come to {what} within {dt.timedelta(seconds=limit_s)}"
                f"{_FEWER if what == INIT else ''}"
            )

    def _ended(self, lost: list[int]) -> RuntimeError:
        # in place of those that ended because they missed others, these others
        missed = [rank for rank in lost if not self._keys.missing([_missed(rank)])]
        found = self._keys.wait_for(list(map(_missed, missed)), NOW_S, _nothing, leave=())
        first = {rank for rank in lost if rank not in missed}
        first.update(int(word) for value in found.values for word in bytes(value).split())
        words = " ".join(map(str, sorted(first)))
        self._keys.put({_missed(self._place.rank): words.encode()})
        return RuntimeError(f"{_ranks(sorted(first))} ended before {self._wait.what}")


def _here(rank: int) -> str:
    return f"here-{rank}"


def _gave_up(rank: int) -> str:
    return f"gave-up-{rank}"


def _missed(rank: int) -> str:
    return f"missed-{rank}"


def _nothing() -> None:
    """Look at nothing while waiting."""


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _on_loopback(original: type) -> type:
    # A `TCPStore` that listens where only this host can reach it
    start: Callable[..., None] = vars(original)["__init__"]

    def __init__(  # noqa: N807  of the class below
        self: object,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *rest: object,
        **options: object,
    ) -> None:
        options |= zip(_TCP_STORE_TAKES, rest, strict=False)
        local = is_master and host_name in LOCAL_NAMES
        if local and options.get("master_listen_fd") is None:
            options["master_listen_fd"], port = wire.listen_on_loopback(port)
        start(self, host_name, port, world_size, is_master, **options)

    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type("TCPStore", (original,), {"__init__": __init__, **names})
