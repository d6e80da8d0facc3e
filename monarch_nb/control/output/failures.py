"""What has failed on ranks, equal errors once: in cells, in calls by whomever, by dying.

Rules of the file: a rank numbers its errors, so one that comes with the outcome of a cell and again
when the rank is asked counts once. What a person has interrupted or stopped is no failure. The
death of a rank that was healed is one of the past (`failure_history.py`), and so is what only ranks
have raised that were started again; what happened to one that came back by itself stays. The 32
kinds of failure of a mesh that happened last are kept. What does not say otherwise runs in the
inbox thread or returns at once.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from monarch_nb.control.output.failure_history import (
    STOPPED,
    Failure,
    FailureHistory,
    PastFailure,
    parted,
    replaced,
)
from monarch_nb.core.errors.records import ErrorRecord, FrameRecord
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.status import GetDetails, KeptError, RankDetails
from monarch_nb.meshes.states import Place, ProcsState, newest_of, place_of
from monarch_nb.process.supervision.recent_errors import KEPT

if TYPE_CHECKING:
    from monarch_nb.control.output.tail import Tail
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshState, Supervision

_WANTED: Final = {"KeyboardInterrupt", "CancelledError", "CallInterrupted", "CallCancelled"}
MAX_GROUPS: Final = 32
MAX_MESHES: Final = 32  # the one whose last failure is the oldest gives way
LINES: Final = 10  # of a rank's output that are kept with its failure
ANEW_S: Final = 1.0  # of failures that come faster the lines of the first are kept


class _Told:
    """Which errors of a process are known."""

    def __init__(self) -> None:
        self.up_to = 0  # a rank has been asked: all of these
        self._beyond: set[int] = set()

    def is_new(self, number: int) -> bool:
        if number <= self.up_to or number in self._beyond:
            return False
        self._beyond.add(number)
        if len(self._beyond) > 2 * KEPT:  # a rank keeps no more: it cannot tell of older ones
            self._beyond = set(sorted(self._beyond)[-KEPT:])
        return True

    def all_to(self, number: int) -> None:
        self.up_to = max(self.up_to, number)
        self._beyond = {each for each in self._beyond if each > self.up_to}


class Failures:
    """The failures of all meshes.

    Example:
        >>> [failure.record.headline for failure in client.failures.of("mesh0")]  # doctest: +SKIP
        ['ValueError: bad batch']
    """

    def __init__(self, proc: Proc, supervision: Supervision, tail: Tail) -> None:
        self._proc = proc
        self._supervision = supervision
        self._tail = tail
        self._history = FailureHistory()
        self._ran: dict[int, str] = {}  # what ranks have died in
        self._meshes: dict[str, dict[Hashable, Failure]] = {}
        self._numbers: dict[str, int] = {}
        self._shown: dict[str, tuple[Failure, ...]] = {}
        self._told: dict[int, _Told] = {}
        self._asked: dict[int, list[Callable[[], None]]] = {}
        self._again: set[int] = set()
        self._last_id = 0
        self._lock = threading.Lock()
        supervision.on_exit.append(self._exited)
        supervision.on_heal.append(self._healed)

    def of(self, mesh: str) -> tuple[Failure, ...]:
        """Return those of the newest mesh of this name, newest first; the same object while nothing
        changes. Any thread.
        """
        state = newest_of(self._supervision, mesh)
        if state is not None and state.number != self._numbers.get(mesh):
            return ()
        return self._shown.get(mesh, ())

    def past(self, mesh: str) -> tuple[PastFailure, ...]:
        """Return those of meshes of this name that are over, the newest first; the same object
        while nothing changes. Any thread.
        """
        state = newest_of(self._supervision, mesh)
        with self._lock:
            if state is not None and self._numbers.get(mesh, state.number) != state.number:
                self._leave(mesh)
            return self._history.of(mesh)

    def everything(self) -> list[tuple[str, Failure, str]]:
        """Return all that is known, of all meshes, what happened last first: the mesh, the failure,
        and what became of it; empty where it is not over. Any thread.
        """
        with self._lock:
            now = [(mesh, each, "") for mesh, shown in self._shown.items() for each in shown]
            past = [(one.mesh, one.failure, one.became) for one in self._history.everything()]
        return sorted([*now, *past], key=lambda told: told[1].at, reverse=True)

    def dismiss(self, mesh: str, failure: int | None) -> int:
        """Forget one that is over, or all of a mesh (None). Returns how many. Any thread."""
        with self._lock:
            return self._history.dismiss(mesh, failure)

    def died_in(self, process: int, what: str) -> None:
        """Note what a process has run that is lost, before its end is told."""
        self._ran[process] = what

    def cell_failed(self, process: int, number: int, record: ErrorRecord, what: str) -> None:
        """Note a cell that has ended with an error, which has this number on its rank."""
        if self._told_by(process).is_new(number):
            self._add(place_of(self._supervision, process), record, what, time.monotonic())

    def refresh(self, processes: Iterable[int], then: Callable[[], None] = lambda: None) -> None:
        """Ask these for errors that are not known yet; `then()` is called in the inbox thread when
        one of them has told some. Returns at once. Any thread.

        One that does not answer (stopped, say) is not asked a second time before it has.
        """
        for process in processes:
            if process in self._proc.dead:
                continue
            with self._lock:
                waiting = self._asked.get(process)
                if waiting is not None:
                    self._again.add(process)
                    if then not in waiting:
                        waiting.append(then)
                    continue
                self._asked[process] = [then]
            self._ask(process)

    def _ask(self, process: int) -> None:
        since = self._told_by(process).up_to
        answered = functools.partial(self._answered, process)
        self._proc.ask(process, GetDetails(since), answered)

    def _answered(self, process: int, answer: RankDetails | Refused) -> None:
        with self._lock:
            callbacks = self._asked.pop(process)
            is_asked_again = process in self._again
            self._again.discard(process)
        try:
            # of one that has ended nothing is remembered any more
            has_news = isinstance(answer, RankDetails) and self._take(process, answer.errors)
        finally:
            if is_asked_again:
                self.refresh([process], callbacks[-1])
        if has_news:
            for each in callbacks:
                each()

    def _take(self, process: int, errors: Iterable[KeptError]) -> bool:
        told, place, has_news = self._told_by(process), place_of(self._supervision, process), False
        for number, age_s, what, _, record in errors:
            if told.is_new(number):
                has_news = True
                error = ErrorRecord.from_json(record)
                self._add(place, error, what, time.monotonic() - age_s)
            told.all_to(number)
        return has_news

    def _told_by(self, process: int) -> _Told:
        with self._lock:
            return self._told.setdefault(process, _Told())

    def _exited(self, ended: Exit) -> None:
        with self._lock:
            self._told.pop(ended.process, None)
        what = self._ran.pop(ended.process, "")
        place = place_of(self._supervision, ended.process)
        if ended.asked or place.state is None or place.state.ended or place.state.internal:
            return
        self._add(place, record_of_death(ended), what, time.monotonic(), ended.plainly())

    def _add(self, place: Place, record: ErrorRecord, what: str, at: float, kind: str = "") -> None:
        if place.state is None or record.ename in _WANTED:
            return
        key = record.signature(), kind
        with self._lock:
            groups = self._groups(place)
            found = groups.get(key)
            if found is None:
                found = Failure(self._next_id(), (), record, what, at, 0)
            came_at = time.time() - (time.monotonic() - at)
            if not found.count or at > found.at + ANEW_S:
                lines = self._tail.before(came_at, LINES, place.mesh, place.rank, place.number)
                found = replace(found, lines=lines, writer=place.rank)
            groups[key] = replace(
                found,
                ranks=tuple(sorted({*found.ranks, place.rank})),
                record=record,
                what=what,
                at=max(at, found.at),
                count=found.count + 1,
                came_at=max(came_at, found.came_at),
            )
            if len(groups) > MAX_GROUPS:
                del groups[min(groups, key=lambda each: groups[each].at)]
            self._show(place.mesh, groups)

    def _healed(self, state: MeshState, ranks: Sequence[int]) -> None:
        with self._lock:
            if self._numbers.get(state.name) != state.number:
                return
            groups = self._meshes[state.name]
            restarts = state.restarting if isinstance(state, ProcsState) else {}
            ranks = [rank for rank in ranks if rank not in restarts]
            for key, found in list(groups.items()):
                over, left = parted(found, ranks)
                if left is None:
                    del groups[key]
                else:
                    groups[key] = left
                if over is not None:
                    after_s = time.monotonic() - over.at
                    became = replaced(died=over.record.died, after_s=after_s)
                    self._keep(state.name, over, became)
            self._show(state.name, groups)

    def _keep(self, mesh: str, over: Failure, became: str) -> None:
        # with an id of its own: what is left of a death has the other
        past = replace(over, id=self._next_id())
        self._history.add(PastFailure(mesh, past, became))

    def _leave(self, mesh: str) -> None:
        # The mesh that had this name is gone
        for each in sorted(self._meshes.pop(mesh, {}).values(), key=lambda one: one.at):
            self._keep(mesh, each, STOPPED)
        self._numbers.pop(mesh, None)
        self._shown.pop(mesh, None)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _show(self, mesh: str, groups: dict[Hashable, Failure]) -> None:
        newest_first = sorted(groups.values(), key=lambda each: each.at, reverse=True)
        self._shown[mesh] = tuple(newest_first)

    def _groups(self, place: Place) -> dict[Hashable, Failure]:
        if self._numbers.get(place.mesh, place.number) != place.number:
            self._leave(place.mesh)
        groups = self._meshes[place.mesh] = self._meshes.pop(place.mesh, {})
        self._numbers[place.mesh] = place.number
        if len(self._meshes) > MAX_MESHES:
            oldest = next(iter(self._meshes))
            del self._meshes[oldest], self._numbers[oldest], self._shown[oldest]
        return groups


def record_of_death(ended: Exit) -> ErrorRecord:
    """Describe as an error how a process died, and where it crashed."""
    text = f"the process {ended.plainly()}{ended.printed()}"
    calls = tuple(FrameRecord(*frame) for frame in ended.crashed_at())
    kind = "RankExited" if ended.unreachable_s is None else "RankUnreachable"
    return ErrorRecord(kind, text, "monarch_nb", calls, died=True)
