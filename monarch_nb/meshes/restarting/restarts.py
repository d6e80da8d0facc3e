"""`Restarts`: actors of this process's meshes that are started again when they fail.

Rules: whether is decided in `intensity.py`, and noted in the inbox thread before anybody is told of
the loss; a thread for each mesh of processes brings back what is lost there. A rank that is not
brought back is told to its owner and to everybody who may wait for it: nobody waits in vain.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.meshes.healing.healing import Healing, Made
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process.supervision.moved_ranks import MovedRanks
from monarch_nb.process.supervision.supervision import MeshFailure, MeshState, Supervision

_log: Final = logging.getLogger("monarch_nb")
_OVER: Final = "its mesh is restarted no more"


class _Loss(NamedTuple):
    """How a rank was lost, for people, and when."""

    how: str
    at: float


class Restarts:
    """Those of the meshes that this process owns. `on_restarted` are called with a line for people
    when ranks are back, in any thread; where there are none, it is logged."""

    def __init__(
        self,
        supervision: Supervision,
        spawner: Spawner,
        moved: MovedRanks,
        healing: Healing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_restarted: list[Callable[[str], None]] = []
        self._supervision = supervision
        self._spawner = spawner
        self._moved = moved
        self._healing = healing
        self._clock = clock
        self._losses: dict[tuple[int, int], _Loss] = {}  # by number of the mesh, and rank
        self._due: dict[int, ProcsState] = {}  # where something is to be brought back, by number
        self._at_work: set[int] = set()
        self._lock = threading.Lock()
        supervision.on_losses.append(self._take)
        supervision.on_told.append(self._begin)
        supervision.on_disowned.append(self._disowned)

    # what is lost: `marking` is held, mostly in the inbox thread

    def _take(self, losses: list[MeshFailure]) -> list[MeshFailure]:
        told: list[MeshFailure] = []
        back: dict[int, set[int]] = {}  # ranks of processes, by number of their mesh
        for failure in losses:
            state = failure.state
            if not isinstance(state, ActorsState) or state.restarted_by is None:
                told.append(failure)
                continue
            taken = self._allowed(state, failure)
            if taken:
                self._await(state, failure, taken)
                places = {state.proc_ranks[rank] for rank in taken}
                back.setdefault(_procs(state).number, set()).update(places)
            if refused := [rank for rank in failure.crashed_ranks if rank not in taken]:
                told.append(self._refuse(state, failure.of(refused)))
        return [rest for each in told if (rest := self._without(each, back)) is not None]

    def _allowed(self, state: ActorsState, failure: MeshFailure) -> list[int]:
        now, restarts = self._clock(), state.restarts
        if restarts is None:
            return []
        return [rank for rank in failure.crashed_ranks if restarts.allows(rank, now)]

    def _refuse(self, state: ActorsState, failure: MeshFailure) -> MeshFailure:
        ranks = failure.crashed_ranks
        state.lose_for_good(failure)
        why = _OVER if state.restarts is None else state.restarts.refusal(ranks)
        self._tell_given_up(state, ranks, why)
        return failure

    def _await(self, state: ActorsState, failure: MeshFailure, ranks: list[int]) -> None:
        now = self._clock()
        for rank in ranks:
            self._losses.setdefault((state.number, rank), _Loss(_how(failure), now))
        state.await_return(ranks)
        procs = _procs(state)
        with self._lock:
            self._due[procs.number] = procs

    def _without(self, failure: MeshFailure, back: dict[int, set[int]]) -> MeshFailure | None:
        # processes that are replaced are no failure, nor is what comes back with them as it was
        state = failure.state
        if isinstance(state, ProcsState):
            found = back.get(state.number, set()).intersection(failure.crashed_ranks)
            state.note_restarts(found, _how(failure))
        elif isinstance(state, ActorsState) and state.keeps_nothing:
            places = back.get(_procs(state).number, set())
            found = {rank for rank in failure.crashed_ranks if state.proc_ranks[rank] in places}
        else:
            return failure
        state.await_return(found)
        left = [rank for rank in failure.crashed_ranks if rank not in found]
        return failure.of(left) if left else None

    def _disowned(self, state: MeshState) -> None:
        if isinstance(state, ActorsState) and state.restarted_by is not None:
            every = range(len(state.processes))
            self._moved.announce_given_up(state, every, f"its mesh was stopped: {state.ended}")

    # bringing it back: a thread for each mesh of processes

    def _begin(self) -> None:
        with self._lock:
            new = self._due.keys() - self._at_work
            self._at_work |= new
        for number in new:
            work = functools.partial(self._work, number)
            threading.Thread(target=work, name="monarch-restarts", daemon=True).start()

    def _work(self, number: int) -> None:
        while (procs := self._next(number)) is not None:
            try:
                made = self._healing.restart(procs)
            except Exception as error:  # noqa: BLE001  who waits has to be told, whatever it is
                self._give_up(procs, str(error))
            else:
                for each in made:
                    self._tell_when_made(each)

    def _next(self, number: int) -> ProcsState | None:
        with self._lock:
            for actors in list(self._due[number].actors):
                if actors.returning:
                    return _procs(actors)
            del self._due[number]
            self._at_work.discard(number)
            return None

    def _tell_when_made(self, made: Made) -> None:
        actors = made.actors

        def tell(_: object) -> None:
            _procs(actors).end_restarts(actors.proc_ranks[rank] for rank in made.ranks)
            back = [rank for rank in made.ranks if rank not in actors.lost]
            if actors.ended is None and back:
                self._tell_back(actors, back)

        made.done.add_done_callback(tell)

    def _tell_back(self, actors: ActorsState, ranks: Sequence[int]) -> None:
        losses: dict[_Loss, list[int]] = {}
        for rank in ranks:
            if (loss := self._losses.pop((actors.number, rank), None)) is not None:
                losses.setdefault(loss, []).append(rank)
        for loss, some in losses.items():
            took_s = self._clock() - loss.at
            self._say(f"{actors.name}: {rank_words(some)} {loss.how}; restarted in {took_s:.2f} s")

    def _say(self, line: str) -> None:
        if not self.on_restarted:
            _log.warning(line)
        for listener in self.on_restarted:
            listener(line)

    # what does not come back

    def _give_up(self, procs: ProcsState, error: str) -> None:
        why = f"it could not be restarted: {error}"
        told: list[MeshFailure] = []
        with self._supervision.proc.marking:
            for actors in list(procs.actors):
                if ranks := sorted(actors.returning):
                    told.append(actors.lost[ranks[0]].of(ranks))
                    actors.lose_for_good(told[-1])
                    self._tell_given_up(actors, ranks, why)
            procs.give_up(procs.returning, why)
        if procs.stopping is None:  # what is being stopped has not failed
            for failure in told:
                self._supervision.raise_to(failure.state.owner_port, failure, seen=False)

    def _tell_given_up(self, state: ActorsState, ranks: Collection[int], why: str) -> None:
        for rank in ranks:
            self._losses.pop((state.number, rank), None)
        state.give_up(ranks, why)
        _procs(state).end_restarts(state.proc_ranks[rank] for rank in ranks)
        self._moved.announce_given_up(state, ranks, why)
        self._spawner.tell_to_stop(state, ranks, why)


def _procs(state: ActorsState) -> ProcsState:
    assert state.procs is not None  # of actors that were spawned here
    return state.procs


def _how(failure: MeshFailure) -> str:
    if failure.ended is not None:
        return failure.ended.plainly()
    event = failure.event.splitlines()[0]
    return f"failed, {event.rpartition('have failed: ')[2]}"
