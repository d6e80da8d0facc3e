"""`torch.distributed` finds its peers without a listening socket and without a line of the user's.

`init_process_group()` with its default `env://` uses a `FileStore` in the mesh's private run dir.
PyTorch's own way would start a TCP store that listens on every interface without authentication. A
`TCPStore` that the user's code makes listens on the loopback only. An address that is not this
host's is left to PyTorch. Peers wait for each other in Python, where an interrupt reaches them.

Each group of a place meets under a number. The file says which is next, the first under which
nobody has met: ranks that counted for themselves would never agree again after one has given up.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import parse_qs, urlparse

from monarch_nb.net import wire
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Store
from monarch_nb.worker.groups.process_groups import PeerDeaths, Place, ProcessGroups, Wait, myself

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

Met = tuple[Store, int, int]
"""Store, rank and size: what PyTorch asks of a rendezvous."""
Handler = Callable[..., Iterator[Met]]

_TCP_STORE_TAKES: Final = (
    "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv",
)  # fmt: skip


def prepare_environment() -> None:
    """Let whatever looks for peers by the environment look on this host's loopback."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def install(groups: ProcessGroups) -> None:
    """Make `env://` mean the place where the groups of this process meet."""
    # torch.distributed.rendezvous names a function too, and it hides the module
    module = c10d.load("torch.distributed.rendezvous")
    handlers: dict[str, Handler] = module._rendezvous_handlers
    original = handlers["env"]

    def meet(url: str, timeout: dt.timedelta = DEFAULT_TIMEOUT, **rest: object) -> Iterator[Met]:
        if os.environ.get("MASTER_ADDR", "") not in LOCAL_NAMES:
            return original(url, timeout=timeout, **rest)
        return _meet_in_file(groups, url, timeout)

    handlers["env"] = meet
    distributed = c10d.load("torch.distributed")
    loopback = _on_loopback(distributed.TCPStore)
    vars(distributed)["TCPStore"] = vars(module)["TCPStore"] = loopback


def _meet_in_file(groups: ProcessGroups, url: str, timeout: dt.timedelta) -> Iterator[Met]:
    distributed, place = c10d.load("torch.distributed"), groups.world
    asked = parse_qs(urlparse(url).query)
    rank = int(asked.get("rank", [os.environ.get("RANK", place.rank)])[0])
    size = int(asked.get("world_size", [os.environ.get("WORLD_SIZE", place.size)])[0])
    store = distributed.FileStore(place.path)  # with a size, the last to leave removes it
    store.set_timeout(timeout)
    while True:
        group = distributed.PrefixStore(f"group-{place.group}", store)
        if not group.check([_MET]):
            break
        place.group += 1
    limit_s, place.limit_s = min(timeout.total_seconds(), place.limit_s), float("inf")
    try:
        _wait_for_peers(groups, group, place, rank, list(range(size)), limit_s, INIT)
    except BaseException:
        _forget_the_group()
        raise
    yield group, rank, size
    raise RuntimeError(
        "a process group over the mesh's store cannot be re-made in place; init it again"
    )


def meet(
    groups: ProcessGroups, name: str, ranks: list[int], timeout: dt.timedelta, what: str
) -> Store:
    """Return the store in which these ranks of the world meet under `name`, when all are there.

    Raises `TimeoutError`, which names those that did not come to `what`. Any thread.
    """
    distributed, place = c10d.load("torch.distributed"), groups.world
    store = distributed.FileStore(place.path)
    store.set_timeout(timeout)
    number = 0
    group: Store = distributed.PrefixStore(f"{name}-{number}", store)
    while group.check([_MET]):
        number += 1
        group = distributed.PrefixStore(f"{name}-{number}", store)
    _wait_for_peers(groups, group, place, place.rank, ranks, timeout.total_seconds(), what)
    return group


def _wait_for_peers(
    groups: ProcessGroups, store: Store, place: Place, rank: int, ranks: list[int], limit_s: float,
    what: str,
) -> None:  # fmt: skip
    # PyTorch would wait where no interrupt is seen, and for those that will never come too
    store.set(f"here-{rank}", myself())
    try:
        with groups.waiting(what) as wait:
            _find(groups.deaths, ranks, store, place, limit_s, wait)
    except BaseException:  # an interrupt too: who comes later is not to count on this rank
        store.delete_key(f"here-{rank}")
        raise
    store.set(_MET, "1")
    place.processes.update({each: store.get(f"here-{each}").decode() for each in ranks})
    groups.deaths.watch(place.processes.values())


def _forget_the_group() -> None:
    world = c10d.world()
    if world.default_pg is None:
        world.group_count = 0


def _find(
    deaths: PeerDeaths, missing: list[int], store: Store, place: Place, limit_s: float, wait: Wait
) -> None:
    deadline, poll_s, what = time.monotonic() + limit_s, POLL_S, wait.what
    while True:
        gone = place.gone(missing)  # before looking who is here: who was and left has been here
        missing = [peer for peer in missing if not store.check([f"here-{peer}"])]
        if not missing:
            return
        wait.misses(missing)
        if wait.ended:
            raise RuntimeError(f"{what}: {wait.ended}")
        dead = deaths.among({r: p for r, p in place.processes.items() if r in missing})
        if lost := {*gone, *dead}.intersection(missing):
            first = _first_to_end(store, lost)
            store.set(f"missed-{place.rank}", " ".join(map(str, first)))
            raise RuntimeError(f"{_ranks(first)} ended before {what}")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{_ranks(missing)} did not come to {what} within {dt.timedelta(seconds=limit_s)}"
                f"{_FEWER if what == INIT else ''}"
            )
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, MAX_POLL_S)


def _first_to_end(store: Store, ranks: Iterable[int]) -> list[int]:
    """Return, in place of those that ended because they missed others, these others."""
    first: set[int] = set()
    for rank in ranks:
        missed = f"missed-{rank}"
        first.update(map(int, store.get(missed).split()) if store.check([missed]) else [rank])
    return sorted(first)


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
