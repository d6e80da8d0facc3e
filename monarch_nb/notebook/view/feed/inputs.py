"""What the feed reads at one moment: plain data, and views of bounded journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monarch_nb.control.output.failure_history import Failure, PastFailure
    from monarch_nb.control.status.snapshots import HostStatus, MeshStatus, Snapshot
    from monarch_nb.control.status.timeline import Timeline
    from monarch_nb.core.curves import Curve
    from monarch_nb.core.runs import Run
    from monarch_nb.notebook.jobs.running import JobSeen


class CellAtWork(NamedTuple):
    """The notebook cell that runs in the kernel. `since`: `time.monotonic()`. `is_watched`: a
    person wants to be told when it ends, however short it is."""

    number: int
    id: str | None
    since: float
    is_watched: bool = False


class Nothing(NamedTuple):
    """The snapshot where no client runs."""

    meshes: tuple[MeshStatus, ...] = ()
    hosts: tuple[HostStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedInputs:
    """One moment; the mappings are by name of the mesh.

    `current`: the mesh that `%%mesh` means. `actors`: what the ranks have told of them, where they
    were asked. `past`: failures that are over.
    """

    snapshot: Snapshot | Nothing = field(default_factory=Nothing)
    cell: CellAtWork | None = None
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    failures: Mapping[str, Sequence[Failure]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)
    actors: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    current: str | None = None
    jobs: Sequence[JobSeen] = ()
    past: Mapping[str, Sequence[PastFailure]] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Run]] = field(default_factory=dict)


class View(NamedTuple):
    """What the clients of a channel want to see. `meshes`: None for all."""

    parts: frozenset[str] = frozenset()
    meshes: frozenset[str] | None = None

    def shows(self, mesh: str) -> bool:
        return self.meshes is None or mesh in self.meshes
