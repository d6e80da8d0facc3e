"""The elastic loops that run: who has asked what, and ranks that come back in the midst of one.

Rules: what a loop decides is in `core/elastic/record.py`; here it is asked under one lock, in the
inbox thread or in that which heals, and its answers are sent. A rank that is lost in a loop has not
ended its cell: a new process runs that on.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from monarch_nb.control.cell_history import CellHistory
from monarch_nb.core.elastic.record import LoopRecord, Phase, Told
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages import elastic as messages
from monarch_nb.core.wire.messages.agents import Kill
from monarch_nb.core.wire.messages.cells import LOOP, PAST, CellOutcome, RunCell
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.errors import MeshError
from monarch_nb.meshes.states import ProcsState, place_of
from monarch_nb.process.process import Serve, serve

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.meshes.healing.healing import Healing
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

HUNG_S: Final = 2.0
"""After a collective has timed out on a rank, for others that wait in it to say so too."""
_HUNG: Final = "came to no collective in time, and was ended"
_STUCK: Final = "could not leave a collective, and was ended"
OWN_ERROR_S: Final = 1.0
"""After a rank has stopped with an error: nobody has died by then, and all hosts are heard, so it
is its own."""
Key = tuple[int, int, int]
"""The number of a mesh, the tag of a cell, and which loop of it."""


class RunningCell(Protocol):
    """A cell that ranks run, as its sender has it."""

    tag: int

    @property
    def state(self) -> ProcsState: ...
    @property
    def cell(self) -> RunCell: ...
    @property
    def pending(self) -> Sequence[int]: ...
    def replace(self, rank: int, process: int) -> None: ...
    def send_again(self, rank: int, cells: Sequence[RunCell]) -> None: ...
    def lose(self, rank: int, ended: Exit) -> None: ...


_OfLoop = (
    messages.HoldStep
    | messages.ParkRank
    | messages.RankStuck
    | messages.RankReady
    | messages.EndLoop
)
Decide = Callable[[LoopRecord, int], list[Told]]


class Mended(NamedTuple):
    """What became of a loop, for people."""

    tag: int
    text: str


@dataclass
class _Loop:
    record: LoopRecord
    state: ProcsState
    cells: list[RunningCell]
    asked: dict[int, Message] = field(default_factory=dict)
    exits: dict[int, Exit] = field(default_factory=dict)  # of ranks, since it ran last
    gone: dict[int, Exit] = field(default_factory=dict)  # the same, whom nobody replaces
    ended: dict[int, str] = field(default_factory=dict)  # why the loop has ended ranks
    lost_at: float = 0.0

    def cell_of(self, rank: int) -> RunningCell | None:
        return next((each for each in self.cells if rank in each.pending), None)


class _Taken(NamedTuple):
    loop: _Loop
    rank: int


class ElasticLoops:
    """All of a controller. `on_mended` are called with what has happened, in any thread.
    `hears(host)`: there is a way to it, on which it says something."""

    def __init__(
        self,
        proc: Proc,
        supervision: Supervision,
        healing: Healing,
        history: CellHistory,
        hears: Callable[[int], bool],
    ) -> None:
        self.on_mended: list[Callable[[Mended], None]] = []
        self._proc = proc
        self._supervision = supervision
        self._healing = healing
        self._history = history
        self._hears = hears
        self._cells: list[RunningCell] = []
        self._loops: dict[Key, _Loop] = {}
        self._lock = threading.RLock()
        self._healers: dict[int, threading.Thread] = {}
        supervision.on_exit.append(self._exited)

    def handlers(self) -> list[Serve]:
        return [
            serve(messages.BeginLoop, self._on_begin),
            serve(messages.HoldStep, self._on_hold),
            serve(messages.ParkRank, self._on_park),
            serve(messages.RankStuck, self._on_stuck),
            serve(messages.RankReady, self._on_ready),
            serve(messages.EndLoop, self._on_end),
        ]

    # cells

    def cell_begins(self, cell: RunningCell) -> None:
        """Know a cell that is sent to ranks."""
        with self._lock:
            self._cells.append(cell)

    def cell_ended(self, cell: RunningCell) -> None:
        """Forget one that has ended on all of its ranks, and its loops."""
        with self._lock:
            self._cells = [each for each in self._cells if each is not cell]
            for key, loop in list(self._loops.items()):
                loop.cells = [each for each in loop.cells if each is not cell]
                if not loop.cells:
                    del self._loops[key]

    def holds(self, process: int) -> bool:
        """Tell whether a process that has died will be replaced, in a loop."""
        with self._lock:
            return any(self._is_in(loop, process) for loop in self._loops.values())

    def ended_on(self, cell: RunningCell, rank: int, outcome: CellOutcome) -> None:
        """Note that a cell has ended on one rank, or has come to no loop there."""
        with self._lock:
            for loop in list(self._loops.values()):
                if cell in loop.cells and rank in loop.record.lost:
                    why = "" if outcome.error is None else f": {outcome.error.headline}"
                    self._fail(loop, f"the new process of rank {rank} came to no loop{why}")

    def _is_in(self, loop: _Loop, process: int) -> bool:
        record = loop.record
        return record.can_be_mended and process in record.processes.values()

    # what ranks ask: the inbox thread

    def _on_begin(self, asked: messages.BeginLoop, message: Message) -> None:
        place = place_of(self._supervision, message.source)
        if place.state is None:
            self._proc.answer(message, Refused("it runs on no mesh of this controller"))
            return
        key = place.number, asked.tag, asked.loop
        with self._lock:
            loop = self._loops.get(key)
            if loop is None:
                loop = self._loops[key] = self._new(place.state, asked.tag)
            loop.asked[place.rank] = message
            names = [each.name for each in asked.groups]
            record = loop.record
            told = record.begin(
                place.rank,
                asked.step,
                asked.held,
                names,
                part=asked.part,
                may_be_fewer=asked.may_be_fewer,
            )
            self._answer(loop, told)

    def _new(self, state: ProcsState, tag: int) -> _Loop:
        cells = [each for each in self._cells if each.tag == tag and each.state is state]
        ranks = {rank for each in cells for rank in each.pending}
        processes = {rank: state.processes[rank] for rank in ranks}
        hosts = {rank: _host_of(state, rank) for rank in ranks}
        return _Loop(LoopRecord(processes, hosts), state, cells)

    def _on_hold(self, said: messages.HoldStep, message: Message) -> None:
        def hold(record: LoopRecord, rank: int) -> list[Told]:
            record.hold(rank, said.step, said.held, is_snapshot=said.is_snapshot, part=said.part)
            return []

        self._take(said, message, hold)

    def _on_park(self, asked: messages.ParkRank, message: Message) -> None:
        taken = self._take(asked, message, lambda record, rank: record.park(rank, asked))
        if taken is not None and taken.loop.record.phase is Phase.RUNS:
            if asked.timed_out:
                _after(HUNG_S, self._end_hung, taken)
            else:
                _after(OWN_ERROR_S, self._give_up, taken)

    def _end_hung(self, loop: _Loop, rank: int) -> None:
        with self._lock:
            hung = loop.record.hung()
            for each in hung:
                self._end(loop, each, _HUNG)
            if not hung:  # they are out of step, and nobody is to blame
                self._answer(loop, loop.record.give_up(rank))

    def _on_stuck(self, said: messages.RankStuck, message: Message) -> None:
        with self._lock:
            taken = self._take(said, message, lambda *_: [])
            if taken is not None and taken.rank in taken.loop.record.awaited:
                self._end(taken.loop, taken.rank, _STUCK)

    def _end(self, loop: _Loop, rank: int, why: str) -> None:
        loop.ended[rank] = why
        self._proc.control(loop.state.agents[rank], Kill([loop.state.processes[rank]]))

    def _give_up(self, loop: _Loop, rank: int) -> None:
        with self._lock:
            if all(map(self._hears, set(loop.record.hosts.values()))):
                self._answer(loop, loop.record.give_up(rank))
            else:  # whether it has died is known soon
                _after(OWN_ERROR_S, self._give_up, _Taken(loop, rank))

    def _on_ready(self, asked: messages.RankReady, message: Message) -> None:
        taken = self._take(
            asked, message, lambda record, rank: record.ready(rank, asked.generation)
        )
        if taken is not None and taken.loop.record.phase is Phase.RUNS:
            self._mended(taken.loop)

    def _on_end(self, said: messages.EndLoop, message: Message) -> None:
        self._take(
            said,
            message,
            lambda record, rank: record.leave(rank, said.step, finished=said.finished),
        )

    def _take(self, asked: _OfLoop, message: Message, decide: Decide) -> _Taken | None:
        with self._lock:
            place = place_of(self._supervision, message.source)
            loop = self._loops.get((place.number, asked.tag, asked.loop))
            if loop is None:
                self._proc.answer(message, Refused("the cell of this loop has ended"))
                return None
            if message.reply:
                loop.asked[place.rank] = message
            self._answer(loop, decide(loop.record, place.rank))
            return _Taken(loop, place.rank)

    def _answer(self, loop: _Loop, told: Sequence[Told]) -> None:
        for rank, answer in told:
            if (message := loop.asked.pop(rank, None)) is not None:
                self._proc.answer(message, answer)
        if loop.record.phase is Phase.OVER:
            self._let_go(loop)

    def _let_go(self, loop: _Loop) -> None:
        # those that will not come back are lost to their cells
        exits, loop.exits = loop.exits | loop.gone, {}
        gone, loop.gone = loop.gone, {}
        for rank, ended in exits.items():
            is_lost = rank in loop.record.lost or rank in gone
            if (cell := loop.cell_of(rank)) is not None and is_lost:
                cell.lose(rank, ended)

    # recovery

    def _exited(self, ended: Exit) -> None:
        # the inbox thread
        with self._lock:
            for loop in list(self._loops.values()):
                rank = loop.record.rank_of(ended.process)
                if rank is None or not self._is_in(loop, ended.process):
                    continue
                loop.lost_at = loop.lost_at or time.monotonic()
                loop.exits[rank] = ended
                self._answer(loop, loop.record.lose(rank))
                self._heal_soon(loop.state)

    def _heal_soon(self, state: ProcsState) -> None:
        if state.number not in self._healers:
            heal = functools.partial(self._heal, state)
            self._healers[state.number] = made = threading.Thread(
                target=heal, name="monarch-elastic", daemon=True
            )
            made.start()

    def _heal(self, state: ProcsState) -> None:
        while loops := self._with_losses(state):
            before = list(state.processes)
            try:
                self._healing.of_loops(state, self._wanted(loops))
            except (MeshError, RuntimeError) as error:
                for loop in loops:
                    self._go_on_without(loop, f"the mesh could not be healed: {error}")
                continue
            new = [rank for rank, each in enumerate(state.processes) if each != before[rank]]
            for loop in loops:
                self._send_again(loop, new)

    def _wanted(self, loops: Sequence[_Loop]) -> set[int]:
        with self._lock:
            dead = self._proc.dead
            return {
                rank
                for loop in loops
                for rank, process in loop.record.processes.items()
                if process in dead
            }

    def _with_losses(self, state: ProcsState) -> list[_Loop]:
        # loops whose lost ranks have no new process yet; none: nobody heals any more
        with self._lock:
            dead = self._proc.dead
            found = [
                loop
                for loop in self._loops.values()
                if loop.state is state
                and loop.record.wants_processes
                and any(loop.record.processes[rank] in dead for rank in loop.record.ranks)
            ]
            if not found:
                del self._healers[state.number]
            return found

    def _send_again(self, loop: _Loop, new: Sequence[int]) -> None:
        for rank in new:
            with self._lock:
                cell = loop.cell_of(rank)
                if cell is None or rank not in loop.record.ranks:
                    continue
                process = loop.state.processes[rank]
                loop.record.replace(rank, process, _host_of(loop.state, rank))
                cell.replace(rank, process)
            past = self._history.wanted(loop.state.number, rank, cell.cell)
            again = [each._replace(again=PAST, keep=False) for each in past]
            cell.send_again(rank, [*again, cell.cell._replace(again=LOOP)])

    def _go_on_without(self, loop: _Loop, why: str) -> None:
        # those whose processes are dead and have nobody in their place
        with self._lock:
            dead, record = self._proc.dead, loop.record
            ranks = [rank for rank in record.lost if record.processes[rank] in dead]
            loop.gone |= {rank: loop.exits.pop(rank) for rank in ranks}
            self._answer(loop, record.go_on_without(ranks, why))

    def _fail(self, loop: _Loop, why: str) -> None:
        self._answer(loop, loop.record.fail(why))

    def _mended(self, loop: _Loop) -> None:
        with self._lock:
            exits, loop.exits = loop.exits, {}
            gone, loop.gone = loop.gone, {}
            ours, loop.ended = loop.ended, {}
            began, loop.lost_at = loop.lost_at, 0.0
            record, tag = loop.record, loop.cells[0].tag
            for rank, ended in gone.items():
                if (cell := loop.cell_of(rank)) is not None:
                    cell.lose(rank, ended)
        said = []
        if exits:
            took_s = time.monotonic() - began
            back = "it is" if len(exits) == 1 else "they are"
            said.append(f"{_ended(exits, ours)}: {back} back after {took_s:.1f} s")
        left = ""
        if gone:
            them = "it" if len(gone) == 1 else "them"
            said.append(f"{_ended(gone, ours)}: no place is left for {them}")
            left = f" with {rank_words(tuple(sorted(record.ranks)))}"
        if said:
            text = f"{'; '.join(said)}, and the loop goes on at step {record.step}{left}\n"
            for each in self.on_mended:
                each(Mended(tag, text))


def _after(delay_s: float, action: Callable[[_Loop, int], None], taken: _Taken) -> None:
    timer = threading.Timer(delay_s, action, taken)
    timer.daemon = True
    timer.start()


def _host_of(state: ProcsState, rank: int) -> int:
    return state.agents[rank] >> HOST_SHIFT


def _ended(exits: Mapping[int, Exit], ours: Mapping[int, str]) -> str:
    by_how: dict[str, list[int]] = {}
    for rank in sorted(exits):
        how = ours.get(rank) or exits[rank].plainly()
        by_how.setdefault(how, []).append(rank)
    return "; ".join(f"{_each_of(ranks)} {how}" for how, ranks in by_how.items())


def _each_of(ranks: list[int]) -> str:
    words = rank_words(tuple(ranks))
    return words if len(ranks) == 1 else f"each of {words}"
