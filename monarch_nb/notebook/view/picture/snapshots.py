"""One look at a mesh, or at a part of one: what pictures are made of, and what a page is told.

Rule of the file: it draws nothing and sends nothing. Nothing is started for a look.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.errors.folding import rank_list
from monarch_nb.core.errors.records import clip
from monarch_nb.notebook import tracebacks
from monarch_nb.notebook.view.picture.history import NOTHING, History
from monarch_nb.notebook.view.picture.marks import in_order

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_nb.control.api import Client, Control
    from monarch_nb.control.output.failure_history import Failure as KeptFailure
    from monarch_nb.control.status.snapshots import HostStatus, MeshStatus, RankStatus, Snapshot

VERSION: Final = 1
SHARED_S: Final = 0.05
"""A page that is loaded asks twice for each widget: one look serves all that ask so soon."""
MAX_ROWS: Final = 64
"""Where ranks do more different things than this, only their states are told."""
MAX_FAILURES: Final = 8
MAX_TEXT: Final = 200
GONE: Final = "the mesh is gone"

Clock = Callable[[float], int]
State = dict[str, Any]
"""A `state` message."""


@dataclass(frozen=True)
class Part:
    """What of a mesh of processes is looked at.

    `title` is the name of what is shown and `said` its `repr`: a mesh, or actors that live on it.
    `ranks` are the ranks of `mesh`, in the order of `sizes`. `is_over`: of meshes of that name, one
    that was stopped is meant.
    """

    title: str
    said: str
    mesh: str
    ranks: tuple[int, ...]
    sizes: Mapping[str, int]
    is_over: bool = False


@dataclass(frozen=True)
class Failure:
    """An error of ranks, in words. `where`: the user's line; `died`: it is how processes ended."""

    id: int
    ranks: tuple[int, ...]
    headline: str
    where: str
    what: str
    at: float
    count: int
    died: bool = False


@dataclass(frozen=True)
class Row:
    """Ranks in the same state. `since` is the earliest, on the clock of the snapshot."""

    state: str
    what: str
    detail: str
    ranks: tuple[int, ...]
    since: float


@dataclass(frozen=True)
class MeshSnapshot:
    """A part of a mesh at a moment; times are those of `time.monotonic()`, but for `taken`."""

    part: Part
    status: MeshStatus
    hosts: tuple[HostStatus, ...]
    failures: tuple[Failure, ...]
    at: float
    taken: dt.datetime

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The ranks that are looked at; None for all of the mesh."""
        whole = tuple(range(len(self.status.ranks)))
        return None if self.part.ranks == whole else self.part.ranks

    def state_of(self, rank: int) -> str:
        """Return the state of a rank; `gone` if it is no more."""
        return self.status.ranks[rank].state if rank < len(self.status.ranks) else "gone"

    def states(self) -> list[str]:
        return [self.state_of(rank) for rank in self.part.ranks]

    def rows(self, most: int = MAX_ROWS) -> list[Row]:
        """Return those in the same state together, in the order of summaries."""
        places = set(self.part.ranks)
        return _rows([rank for rank in self.status.ranks if rank.rank in places], most)

    def state(self) -> State:
        """Return a `state` message of the whole mesh, without what only a watcher needs."""
        return {
            "v": VERSION,
            "type": "state",
            "to": "",
            "n": 0,
            **_mesh_state(self),
            "hosts": [{"name": host.name, "ended": host.ended} for host in self.hosts],
            "seconds": 0,
            "cell": None,
            "current": None,
            "jobs": [],
        }


def gone(state: State) -> State:
    """Return the last state of a mesh that the controller does not know any more."""
    meshes = {
        name: {**mesh, "ended": mesh["ended"] or GONE} for name, mesh in state["meshes"].items()
    }
    return {**state, "meshes": meshes}


def _rows(ranks: Sequence[RankStatus], most: int = MAX_ROWS) -> list[Row]:
    rows = list(_alike(ranks, lambda one: (one.state, one.what, one.detail)))
    if len(rows) > most:
        rows = list(_alike(ranks, lambda one: (one.state, "", "")))
    place = {state: at for at, state in enumerate(in_order(row.state for row in rows))}
    return sorted(rows, key=lambda row: (place[row.state], row.ranks))


def _alike(
    ranks: Sequence[RankStatus], key: Callable[[RankStatus], tuple[str, str, str]]
) -> Iterator[Row]:
    for (state, what, detail), found in itertools.groupby(sorted(ranks, key=key), key=key):
        alike = sorted(found, key=lambda one: one.rank)
        since = min((one.since for one in alike if one.since), default=0.0)
        told, why = clip(what, MAX_TEXT), clip(detail, MAX_TEXT)
        yield Row(state, told, why, tuple(one.rank for one in alike), since)


def _mesh_state(snapshot: MeshSnapshot) -> State:
    status = snapshot.status
    began = min((rank.since for rank in status.ranks if rank.since), default=snapshot.at)

    def ms(moment: float) -> int:
        # On a clock of its own; 0 means that it is not known
        return max(1, round((moment - began) * 1000) + 1) if moment else 0

    mesh = {
        "labels": list(status.labels),
        "sizes": list(status.sizes),
        "ended": status.ended,
        "hosts": [
            [rank_list(one.rank for one in alike), host]
            for host, alike in itertools.groupby(
                sorted(status.ranks, key=lambda one: one.host), key=lambda one: one.host
            )
        ],
        "pids": [rank.pid for rank in status.ranks],
        "ranks": [_told(row, status.ranks, ms) for row in _rows(status.ranks)],
        "failures": [_failure(each, ms) for each in snapshot.failures],
    }
    return {"at": ms(snapshot.at), "meshes": {status.name: mesh}}


def _told(row: Row, ranks: Sequence[RankStatus], ms: Clock) -> list[object]:
    since = [ms(ranks[rank].since) for rank in row.ranks]
    moments = since[0] if len(set(since)) == 1 else since
    return [rank_list(row.ranks), row.state, row.what, row.detail, moments]


def _failure(failure: Failure, ms: Clock) -> State:
    told = {**dataclasses.asdict(failure), "ranks": rank_list(failure.ranks), "at": ms(failure.at)}
    del told["died"]
    return told


class SnapshotReader:
    """Takes snapshots of the meshes of a session; for any thread."""

    def __init__(self, shell: InteractiveShell, control: Control) -> None:
        self._shell = shell
        self._control = control
        self._lock = threading.Lock()
        self._last: tuple[Client, Snapshot] | None = None

    def read(self, part: Part, age_s: float = 0.0) -> MeshSnapshot | None:
        """Return the part as it is, or was `age_s` ago; None when no client knows its mesh."""
        client = self._control.running_client()
        if client is None:
            return None
        snapshot = self._snapshot(client, age_s)
        found = [mesh for mesh in snapshot.meshes if mesh.name == part.mesh]
        if not found:
            return None
        found.sort(key=lambda mesh: (mesh.ended is not None) == part.is_over)
        failures = client.failures.of(part.mesh)[:MAX_FAILURES]
        told = tuple(map(self._told, failures))
        taken = dt.datetime.now().astimezone()
        return MeshSnapshot(part, found[-1], snapshot.hosts, told, snapshot.at, taken)

    def history(self, seen: MeshSnapshot) -> History:
        """Return what the ranks that were looked at have logged and done lately; nothing of a mesh
        whose name another one has now."""
        client, part = self._control.running_client(), seen.part
        if client is None or (seen.status.ended is not None and self._is_succeeded(client, part)):
            return NOTHING
        curves = {name: curve.points for name, curve in client.metrics.curves(part.mesh).items()}
        timeline = client.status.timelines().get(part.mesh)
        strips = [] if timeline is None else timeline.strips()
        return History(curves, {rank: strips[rank] for rank in part.ranks if rank < len(strips)})

    def _is_succeeded(self, client: Client, part: Part) -> bool:
        meshes = self._snapshot(client, SHARED_S).meshes
        return any(mesh.name == part.mesh and mesh.ended is None for mesh in meshes)

    def _told(self, failure: KeptFailure) -> Failure:
        headline = clip(" ".join(failure.record.headline.split()), MAX_TEXT)
        place = tracebacks.place_of_error(self._shell, failure.record)
        return Failure(
            id=failure.id,
            ranks=tuple(failure.ranks),
            headline=headline,
            where=place,
            what=clip(failure.what, MAX_TEXT),
            at=failure.at,
            count=failure.count,
            died=failure.record.died,
        )

    def _snapshot(self, client: Client, age_s: float) -> Snapshot:
        if not age_s:
            return client.snapshot()
        with self._lock:
            last = self._last
            if last is None or last[0] is not client or time.monotonic() - last[1].at > age_s:
                last = self._last = client, client.status.snapshot()
            return last[1]
