"""The values that a snapshot is made of. Plain data, which nobody changes.

What there is one of for each rank is a tuple: with a thousand ranks that change ten times a second,
making them is what an update costs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple


class Usage(NamedTuple):
    """What a rank's process uses. GPU figures are None where nothing is known of GPUs."""

    cpu_percent: int = 0
    rss_bytes: int = 0
    gpu_percent: int | None = None
    gpu_bytes: int | None = None


class RankStatus(NamedTuple):
    """One rank. `state`: starting, idle, busy, collective, paused, silent, leaving, exited,
    unreachable, error or stopped; `what` it runs, or waits in; `detail`: why it ended.

    `host` is an index into `Snapshot.hosts`; `since` is the controller's `time.monotonic()`, 0.0
    where it is not known. `queue` counts what waits, `calls` the calls and cells that have ended,
    `failed` those with an exception; `beat` changes with everything that the rank does.
    """

    rank: int
    coords: dict[str, int]
    pid: int | None
    host: int
    state: str
    what: str
    since: float
    detail: str
    queue: int = 0
    calls: int = 0
    failed: int = 0
    beat: int = 0
    usage: Usage = Usage()

    def age_s(self, now: float) -> float:
        """Return for how long it has been so; 0.0 where that is not known."""
        return max(0.0, now - self.since) if self.since else 0.0


@dataclass(frozen=True)
class ActorStatus:
    """The actors of one spawn. `ended`: why they are gone, all of them."""

    name: str
    cls: str
    size: int
    ended: str | None


@dataclass(frozen=True)
class MeshStatus:
    """One mesh of processes. `number` tells those of one name apart."""

    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[RankStatus, ...]
    actors: tuple[ActorStatus, ...] = ()
    ended: str | None = None
    number: int = 0


@dataclass(frozen=True)
class HostStatus:
    """One host. `ended`: why nothing runs there any more."""

    name: str
    ended: str | None


@dataclass(frozen=True)
class Snapshot:
    """Everything, at one moment: `at` is the controller's `time.monotonic()`."""

    meshes: tuple[MeshStatus, ...]
    hosts: tuple[HostStatus, ...] = ()
    at: float = 0.0

    def __str__(self) -> str:
        return "\n".join(_line(mesh) for mesh in self.meshes) or "no mesh is up"


def _line(mesh: MeshStatus) -> str:
    counts = Counter(rank.state for rank in mesh.ranks)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{mesh.name}: {len(mesh.ranks)} ranks: {states}"
