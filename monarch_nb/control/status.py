"""The one snapshot of every mesh: magics, widgets and tests read the same immutable value.

What a rank does comes from the agent's board, sampled only while somebody looks; what has died
comes from supervision.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors.proc_mesh import ProcsState
from monarch_nb.core.shape import Point

if TYPE_CHECKING:
    from monarch_nb.control.client import Client
    from monarch_nb.core.frames import Message

LOOK_S: Final = 0.3  # how long a snapshot waits for the first sample
KEEP_LOOKING_S: Final = 5.0


@dataclass(frozen=True)
class RankStatus:
    """One rank. `verdict`: starting, idle, busy, silent, exited, stopped (see docs/design.md)."""

    rank: int
    coords: dict[str, int]
    pid: int | None
    verdict: str
    what: str
    since_s: float
    detail: str


@dataclass(frozen=True)
class MeshStatus:
    """One mesh of processes."""

    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[RankStatus, ...]
    actors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """Everything, at one moment."""

    meshes: tuple[MeshStatus, ...]

    def __str__(self) -> str:
        return "\n".join(_line(mesh) for mesh in self.meshes) or "no mesh is up"


def _line(mesh: MeshStatus) -> str:
    counts: dict[str, int] = {}
    for rank in mesh.ranks:
        counts[rank.verdict] = counts.get(rank.verdict, 0) + 1
    states = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{mesh.name}: {len(mesh.ranks)} ranks: {states}"


class StatusDesk:
    """Collects what agents tell; makes snapshots."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pids: dict[int, int] = {}
        self._board: dict[int, dict[str, Any]] = {}
        self._seen_at: dict[int, float] = {}
        self._looking_until: float | None = None
        self._limit: threading.Timer | None = None
        self._news = threading.Condition()

    def on_spawned(self, body: dict[str, Any], _: Message) -> None:
        """Ranks have been forked."""
        self._pids.update(zip(body["procs"], body["pids"], strict=True))

    def on_board(self, body: dict[str, Any], _: Message) -> None:
        """Changed records of the board."""
        now = time.monotonic()
        with self._news:
            for record in body["ranks"]:
                self._board[record["proc"]] = record
                self._seen_at[record["proc"]] = now
            self._news.notify_all()

    def snapshot(self) -> Snapshot:
        """The state of every mesh that the client owns."""
        self._look()
        states = [
            each
            for each in list(self._client.supervision.states.values())
            if isinstance(each, ProcsState)
        ]
        return Snapshot(tuple(self._mesh(state) for state in states))

    def _look(self) -> None:
        """Have the board sampled for a while; wait for the first sample of a new look."""
        supervision, proc = self._client.supervision, self._client.proc
        wanted = {
            process
            for state in list(supervision.states.values())
            if isinstance(state, ProcsState) and state.initialized.done()
            for process in state.processes
            if process not in proc.dead
        }
        if not wanted:
            return
        starting = self._looking_until is None
        self._looking_until = time.monotonic() + KEEP_LOOKING_S
        if starting:
            proc.control(proc.agent, "status", {"on": True})
            self._look_again_in(KEEP_LOOKING_S)
        with self._news:
            self._news.wait_for(lambda: wanted <= self._board.keys() | proc.dead.keys(), LOOK_S)

    def close(self) -> None:
        """Nobody looks any more."""
        if self._limit is not None:
            self._limit.cancel()

    def _look_again_in(self, seconds: float) -> None:
        self._limit = limit = threading.Timer(seconds, self._maybe_stop_looking)
        limit.daemon = True
        limit.name = "monarch-status"
        limit.start()

    def _maybe_stop_looking(self) -> None:
        if self._client.proc.closed:
            return
        left = (self._looking_until or 0) - time.monotonic()
        if left > 0:
            self._look_again_in(left)
            return
        self._looking_until = None
        self._board.clear()
        self._client.proc.control(self._client.proc.agent, "status", {"on": False})

    def _mesh(self, state: ProcsState) -> MeshStatus:
        extent = state.shape.extent
        ranks = tuple(self._rank(state, rank) for rank in range(len(state.processes)))
        actors = tuple((each.name, each.cls.__name__) for each in state.actors)
        return MeshStatus(state.name, tuple(extent.labels), tuple(extent.sizes), ranks, actors)

    def _rank(self, state: ProcsState, rank: int) -> RankStatus:
        process = state.processes[rank]
        verdict, what, since_s, detail = self._verdict(state, process)
        pid = state.pids.get(rank) or self._pids.get(process)
        return RankStatus(
            rank, dict(Point(rank, state.shape.extent)), pid, verdict, what, since_s, detail
        )

    def _verdict(self, state: ProcsState, process: int) -> tuple[str, str, float, str]:
        ended = self._client.proc.dead.get(process)
        if ended is not None:
            verdict = "unreachable" if ended.unreachable_s is not None else "exited"
            return verdict, "", 0.0, ended.plainly()
        if state.ended is not None:
            return "stopped", "", 0.0, state.ended
        supervision = self._client.supervision
        record = self._board.get(process, {})
        since = (
            record.get("since_s", 0.0)
            + time.monotonic()
            - self._seen_at.get(process, time.monotonic())
        )
        what = record.get("what", "")
        if process in supervision.silent:
            return "silent", what, since, "no sign of life: stopped, frozen or swapped out"
        if record:
            return record["state"], what, since, ""
        return ("idle" if state.initialized.done() else "starting"), "", 0.0, ""
