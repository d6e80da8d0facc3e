"""What ranks log, as curves: by mesh, run and name, folded over ranks.

Bounds: 32 names a run, 10 runs a mesh, 8 meshes. A curve has 512 folded points (about 150 bytes
each), and of each rank 512 points of 16 bytes; on meshes of more than 128 ranks fewer of each rank,
so that all names of a run are 33 MB at most. The oldest runs give way where those before the newest
are more than that together. Typical: a run of 64 ranks that log 8 names, 64 x 8 x 512 x 16 bytes =
4 MB.
Readers need no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from monarch_nb.core.curves import CAPACITY, Curve, Sample, from_wire
from monarch_nb.core.errors.records import clip
from monarch_nb.core.runs import RunKey, starts_again
from monarch_nb.core.wire.messages.cells import LoggedValues, MetricsTaken
from monarch_nb.core.wire.messages.codec import decode
from monarch_nb.meshes.states import Place, newest_of, place_of
from monarch_nb.services import metrics

if TYPE_CHECKING:
    from monarch_nb.process.supervision.supervision import Supervision

OWN: Final = "controller"
"""The mesh under whose name the values are kept that this process itself has logged."""
MAX_NAMES: Final = 32
MAX_NAME: Final = 100  # characters
MAX_MESHES: Final = 8  # the one that has been quiet for the longest gives way
MAX_RUNS: Final = 10
MAX_KEYS: Final = 64  # what ranks may call these runs
MAX_TRACE_POINTS: Final = 1 << 21  # of all ranks and names of a run, and of all runs before it
_NOTHING: Final[Mapping[str, Curve]] = MappingProxyType({})


class LoggedRun:
    """A run: its name, or none, and its curves."""

    def __init__(self, number: int, name: str, capacity: int) -> None:
        self.number = number
        self.name = name
        self.curves: Mapping[str, Curve] = {}
        self._capacity = capacity

    @property
    def trace_points(self) -> int:
        return sum(curve.trace_points for curve in self.curves.values())

    def goes_on(self, points: Mapping[str, Sequence[Sample]]) -> bool:
        """Tell whether these may be values of a rank that has come to this run later."""
        for name, samples in points.items():
            known = self.curves.get(name)
            steps = None if known is None else known.steps
            if not samples or steps is None:
                continue
            if starts_again(samples[0].step, *steps, is_other_cell=True):
                return False
        return True

    def curve(self, name: str) -> Curve | None:
        found = self.curves.get(name)
        if found is None and len(self.curves) < MAX_NAMES:
            # a new dict: readers go through the old one
            found = Curve(self._capacity)
            self.curves = {**self.curves, name: found}
        return found


class _Mesh:
    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.runs: tuple[LoggedRun, ...] = ()
        self.left_out = 0
        self._count = 0
        self._capacity = min(CAPACITY, max(16, MAX_TRACE_POINTS // (MAX_NAMES * size)))
        self._by_key: dict[RunKey, LoggedRun] = {}

    def run(self, key: RunKey, points: Mapping[str, Sequence[Sample]]) -> LoggedRun:
        """Return the run that a rank calls so; it begins with these points if it is new."""
        found = self._by_key.get(key)
        if found is None:
            newest = self.runs[-1] if self.runs else None
            is_late = newest is not None and not key.name and newest.goes_on(points)
            found = newest if is_late and newest is not None else self._begin(key.name)
            kept = [each for each in self._by_key.items() if each[1] in self.runs]
            self._by_key = {**dict(kept[1 - MAX_KEYS :]), key: found}
        return found

    def curves(self) -> dict[str, Curve]:
        found: dict[str, Curve] = {}
        for run in self.runs:
            found.update(run.curves)
        return found

    def _begin(self, name: str) -> LoggedRun:
        self._count += 1
        kept = list(self.runs[1 - MAX_RUNS :])
        while kept and sum(run.trace_points for run in kept) > MAX_TRACE_POINTS:
            del kept[0]
        found = LoggedRun(self._count, name, self._capacity)
        self.runs = (*kept, found)
        return found


class Metrics:
    """The curves of all meshes.

    Example:
        >>> client.metrics.curves("mesh0")["loss"].points     # doctest: +SKIP
        [(0, 2.31, 2.29, 2.33, 4), (1, 2.11, 2.08, 2.17, 4)]
    """

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._meshes: dict[str, _Mesh] = {}
        self._writing = threading.Lock()

    def curves(self, mesh: str) -> Mapping[str, Curve]:
        """Return those of the newest mesh of this name, by name in the order in which they came,
        each of the newest run that has it; empty where nothing was logged.
        """
        found = self._found(mesh)
        return _NOTHING if found is None else MappingProxyType(found.curves())

    def runs(self, mesh: str) -> Sequence[LoggedRun]:
        """Return the runs of the newest mesh of this name that are kept, oldest first."""
        found = self._found(mesh)
        return () if found is None else found.runs

    def _found(self, mesh: str) -> _Mesh | None:
        if mesh == OWN:
            self._take_own()
        found = self._meshes.get(mesh)
        state = newest_of(self._supervision, mesh)
        if found is None or (state is not None and state.number != found.number):
            return None
        return found

    def left_out(self, mesh: str) -> int:
        """Return how many values were not kept because the mesh logs more than 32 names."""
        found = self._meshes.get(mesh)
        return 0 if found is None else found.left_out

    def on_logged(self, content: dict[str, object] | None, source: int) -> None:
        """Take what a rank has sent, and tell it so. Inbox thread. Raises `RemoteProtocolError` for
        anything else."""
        self._supervision.proc.control(source, MetricsTaken())
        self.take(content, source)

    def take(self, content: dict[str, object] | None, source: int) -> None:
        """Take what a rank has measured, which waits for no answer. Raises
        `RemoteProtocolError` for anything else."""
        place = place_of(self._supervision, source)
        logged = decode(LoggedValues, content or {})
        points = {name: list(map(from_wire, each)) for name, each in logged.points.items()}
        with self._writing:
            cell, name, number = logged.run
            self._add(place, RunKey(cell, clip(name, MAX_NAME), number), points)
            if logged.left_out is not None:
                self._say_left_out(place, *logged.left_out)

    def _take_own(self) -> None:
        with self._writing:
            batch = metrics.recorder.take()
            place = Place(OWN, 0, 1, 0, None)
            for (_, run, name), samples in batch.samples.items():
                self._add(place, run, {name: samples})
            if batch.left_out:
                self._say_left_out(place, batch.left_out, batch.first_left_out)

    def _add(self, place: Place, key: RunKey, points: Mapping[str, Sequence[Sample]]) -> None:
        if not points:
            return
        run = self._mesh(place).run(key, points)
        for name, samples in points.items():
            curve = run.curve(clip(name, MAX_NAME))
            if curve is None:
                self._say_left_out(place, len(samples), name)
            else:
                curve.add(place.rank, samples)

    def _mesh(self, place: Place) -> _Mesh:
        found = self._meshes.get(place.mesh)
        if found is None or found.number != place.number:
            found = _Mesh(place.number, place.size)
        elif next(reversed(self._meshes)) == place.mesh:
            return found
        others = [each for each in self._meshes.items() if each[0] != place.mesh]
        # the one that was heard last stands last; a new dict: readers have the old one
        self._meshes = {**dict(others[1 - MAX_MESHES :]), place.mesh: found}
        return found

    def _say_left_out(self, place: Place, values: int, name: str) -> None:
        mesh = self._mesh(place)
        if not mesh.left_out:
            logging.getLogger("monarch_nb").warning(
                "%s logs more than %d names: %r and further ones are not kept",
                place.mesh,
                MAX_NAMES,
                clip(name, MAX_NAME),
            )
        mesh.left_out += values
