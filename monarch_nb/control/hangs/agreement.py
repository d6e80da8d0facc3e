"""Ranks that are out of step in their process groups: freed where they wait in vain, and in step
again before they run anything else.

Rules of the file: a rank is asked only after something has failed, or was left, in a mesh that has
process groups. Groups are made again only while all of their members are at rest; until then they
are refused. Who waits is freed only from what will never come: a member has failed in the same call
or cell, and had begun less. Not for the inbox thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from monarch_nb.core.errors.folding import not_coming, rank_words
from monarch_nb.core.hangs import agreement
from monarch_nb.core.hangs.agreement import Difference
from monarch_nb.core.wire.messages import groups as messages
from monarch_nb.meshes.states import ActorsState, ProcsState, procs_of
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.core.wire.messages.groups import Standings
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import MeshState, Supervision

ANSWER_S: Final = 1.0
REST_S: Final = 2.0
"""So long ranks that were freed may take to end what they do."""
POLL_S: Final = 0.02
MAKE_S: Final = 30.0
FREE_S: Final = 2.0
"""So often it is looked whether ranks wait for those on which a call has failed."""


class Failed:
    """Keeps what has failed in a mesh since its ranks were last in step: for each call or cell, by
    its port, the ranks that it failed on; and whether calls were taken back, which ranks notice a
    moment later."""

    def __init__(self) -> None:
        self.ranks: dict[int, set[int]] = {}
        self.is_cancelled = False

    def add(self, port: int, ranks: Collection[int]) -> None:
        self.ranks.setdefault(port, set()).update(ranks)

    def cancelled(self) -> None:
        self.is_cancelled = True


class Agreements:
    """Gets the ranks of each mesh in step in their process groups."""

    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self.on_made: list[Callable[[str, str], None]] = []
        """Each is called with the name of a mesh and a line that says what was done to it."""
        self._proc = proc
        self._supervision = supervision
        self._grouped: set[int] = set()  # meshes that have process groups, by number
        self._doubted: dict[int, Failed] = {}
        self._stuck: dict[int, tuple[ProcsState, Failed]] = {}  # meshes in which a call has failed
        self._freeing: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._settling = threading.Lock()

    def close(self) -> None:
        """Free nobody any more."""
        self._closed.set()
        freeing = self._freeing
        if freeing is not None:
            freeing.join()

    # the inbox thread

    def on_out_of_step(self, told: messages.OutOfStep, _: Message) -> None:
        state = self._supervision.states.get(told.mesh)
        if isinstance(state, ProcsState):
            self._grouped.add(told.mesh)
            if told.left:
                self.doubt(state)

    def call_failed(self, state: MeshState, port: int, ranks: Collection[int]) -> None:
        """Note that a call or a cell has failed on ranks of a mesh of processes or actors."""
        procs = procs_of(state)
        if procs is None or procs.number not in self._grouped:
            return
        if isinstance(state, ActorsState):
            ranks = [state.proc_ranks[rank] for rank in ranks]
            self._free_soon(procs, port, ranks)  # of a cell, who has sent it sees to that
        self.doubt(procs, port, ranks)

    def _free_soon(self, procs: ProcsState, port: int, ranks: Collection[int]) -> None:
        with self._lock:
            self._stuck.setdefault(procs.number, (procs, Failed()))[1].add(port, ranks)
            if self._freeing is None or not self._freeing.is_alive():  # an error may have ended it
                self._freeing = threading.Thread(
                    target=self._free_stuck, name="monarch-fail-fast", daemon=True
                )
                self._freeing.start()

    # a thread of its own, while there is something to free

    def _free_stuck(self) -> None:
        while not self._closed.wait(FREE_S):
            with self._lock:
                stuck, self._stuck = list(self._stuck.values()), {}
                if not stuck:
                    self._freeing = None
                    return
            for state, failed in stuck:
                if not self._is_over(state, failed):
                    for port, ranks in failed.ranks.items():
                        self._free_soon(state, port, ranks)

    def _is_over(self, state: ProcsState, failed: Failed) -> bool:
        # Nobody is left who may yet wait for what has failed; who does now is freed
        with self._lock:
            is_settled = state.number not in self._doubted
        if is_settled or state.ended is not None or state.lost:
            return True
        told = self._ask(state)
        self._free(state, failed.ranks, told)
        return all(each.at_rest for each in told.values())

    # any thread

    def calls_cancelled(self, state: MeshState) -> None:
        """Note that calls were taken back: ranks may leave a collective in which they wait."""
        procs = procs_of(state)
        if procs is not None and procs.number in self._grouped:
            self.doubt(procs)
            with self._lock:
                if (failed := self._doubted.get(procs.number)) is not None:
                    failed.cancelled()

    def doubt(self, state: ProcsState, port: int = 0, ranks: Collection[int] = ()) -> None:
        """Look at the groups of a mesh of processes before it is used the next time."""
        with self._lock:
            self._doubted.setdefault(state.number, Failed()).add(port, ranks)
        for each in (state, *state.actors):
            each.before_use(lambda: self.settle(state))

    def settle(self, state: ProcsState) -> None:
        """Get the ranks of a mesh of processes in step in their groups, if that is in doubt."""
        if self._proc.links.is_receiving():  # it cannot wait for answers
            return
        with self._settling:
            with self._lock:
                failed = self._doubted.pop(state.number, None)
            if failed is None or state.ended is not None or state.lost:
                return
            told = self._at_rest(state, failed)
            found = agreement.differences(told)
            if not found:
                return
            busy = {rank for rank, each in told.items() if not each.at_rest}
            free = [each for each in found if busy.isdisjoint({*each.ranks, *each.lacking})]
            if len(free) < len(found):
                self._keep_doubt(state, failed)
                self._refuse(state, [each for each in found if each not in free], busy)
            if free:
                self._make(state, free)

    def _keep_doubt(self, state: ProcsState, failed: Failed) -> None:
        self.doubt(state)
        for port, ranks in failed.ranks.items():
            self.doubt(state, port, ranks)

    def free(self, state: ProcsState, failed: Mapping[int, Collection[int]]) -> None:
        """End waits of calls and cells, by port, for ranks that have failed in the same one."""
        self._free(state, failed, self._ask(state))

    def _at_rest(self, state: ProcsState, failed: Failed) -> Mapping[int, Standings]:
        # What ranks tell, when all rest; or after a time for those that are freed now
        deadline = time.monotonic() + REST_S
        while True:
            told = self._ask(state)
            if all(each.at_rest for each in told.values()) or time.monotonic() > deadline:
                return told
            if not self._free(state, failed.ranks, told) and not failed.is_cancelled:
                return told
            time.sleep(POLL_S)

    def _ask(self, state: ProcsState) -> Mapping[int, Standings]:
        rank_of = {process: rank for rank, process in enumerate(state.processes)}
        told = ask_all.ask(self._proc, dict.fromkeys(rank_of, messages.GetStandings()), ANSWER_S)
        return {rank_of[process]: each for process, each in told.items()}

    def _free(
        self,
        state: ProcsState,
        failed: Mapping[int, Collection[int]],
        told: Mapping[int, Standings],
    ) -> bool:
        # Whether there was a wait for what failed: it may take a moment to end
        is_found = False
        for rank, standings in told.items():
            for wait in standings.waits:
                if wait.caller != self._proc.id:
                    continue
                gone = failed.get(wait.reply, ())
                if missing := agreement.waits_in_vain(rank, wait, gone, told):
                    is_found = True
                    why = not_coming(missing)
                    self._proc.control(state.processes[rank], messages.EndWait(wait.number, why))
        return is_found

    def _refuse(self, state: ProcsState, found: Sequence[Difference], busy: set[int]) -> None:
        for rank, process in enumerate(state.processes):
            mine = [each for each in found if rank in each.ranks and each.is_left]
            for each in mine:
                why = f"{each.what}, and {rank_words(sorted(busy))} {_are(busy)} still at work"
                self._proc.control(process, messages.RefuseGroups([each.name], why))

    def _make(self, state: ProcsState, found: Sequence[Difference]) -> None:
        requests = {}
        for rank, process in enumerate(state.processes):
            again = [each.name for each in found if rank in each.ranks and not each.lacking]
            dropped = [each.name for each in found if rank in each.ranks and each.lacking]
            if again or dropped:
                requests[process] = messages.MakeAgain(again, dropped)
        told = ask_all.ask(self._proc, requests, MAKE_S)
        why = next((each.failed for each in told.values() if each.failed is not None), None)
        if why is None and len(told) < len(requests):
            late = [state.processes.index(each) for each in requests if each not in told]
            why = f"{rank_words(late)} did not answer"
        if why is None:
            said = agreement.words(found)
        else:
            self.doubt(state)
            said = f"process groups could not be made again: {why}. Type: %mesh regroup"
        for listener in self.on_made:
            listener(state.name, said)
        if not self.on_made:
            logging.getLogger("monarch_nb").warning("%s: %s", state.name, said)


def _are(ranks: Collection[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
