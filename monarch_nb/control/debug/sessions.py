"""All debuggers of the ranks: who is stopped where, and lines for their prompts.

Rules of the file: ranks tell (verb `debug`), in the inbox thread; whoever holds a prompt waits in
a thread of its own, and what it waits for ends when the rank goes on, dies, or answers. A rank that
stops where nobody can answer goes on at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from monarch_nb.core.wire.messages import debug
from monarch_nb.core.wire.messages.codec import Request
from monarch_nb.core.wire.messages.status import GetHeldOfMesh, GetHeldSpans, HeldFor
from monarch_nb.meshes.states import ProcsState, place_of
from monarch_nb.process.futures import ask_all
from monarch_nb.process.supervision.supervision import MeshState

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

A = TypeVar("A")
ANSWER_S: Final = 2.0
PAUSES_S: Final = 1.0
Span = tuple[float, float]  # from and to, in seconds ago: ranks share no clock
Key = tuple[int, int]
"""A process, and the number of the debugger there."""
QUIET_S: Final = 0.15
"""Ranks that stop within this time of one another stop together; `GATHER_S` for all of them."""
GATHER_S: Final = 0.5
HINT: Final = "a rank has stopped in its debugger; in another terminal type: monarch-nb debug\n"


@dataclass(frozen=True)
class Stop:
    """A debugger that waits for a line.

    Attributes:
        tag: the notebook cell for which the rank works; 0 for none.
        what: the actor and endpoint, or "cell".
        kind: "breakpoint", "failure", "post-mortem", or "input": no debugger, but an `input()`.
        file, line, function: where it has stopped.
        text: what the debugger said when it stopped.
        prompt: what it asks, as pdb writes it.
        serial: grows with every stop of any rank.
    """

    key: Key
    mesh: str
    rank: int
    tag: int
    what: str
    thread: str
    kind: str
    file: str
    line: int
    function: str
    text: str
    prompt: str
    serial: int
    at: float


class Holder(Protocol):
    """Who types at prompts."""

    name: str

    def lose(self, key: Key, to: str) -> None:
        """Let go of a prompt that somebody else has taken."""


@dataclass
class Answer:
    """What became of a line: `state` is "sent", then "runs" while the code goes on by itself, and
    in the end "asks" (it has stopped again), "gone" (it went on), "lost", or "busy" (it is at
    another line)."""

    text: str = ""
    state: str = "sent"

    @property
    def is_final(self) -> bool:
        return self.state in ("asks", "gone", "lost", "busy")


class DebugService:
    """The debuggers of all ranks. `mode` is the setting `breakpoints`."""

    def __init__(self, proc: Proc, supervision: Supervision, mode: str) -> None:
        self.proc = proc
        self.supervision = supervision
        self._mode = mode
        self._stops: dict[Key, Stop] = {}
        self._in_order: Sequence[Stop] | None = None  # until one comes or goes
        self._answers: dict[Key, Answer] = {}
        self._words: dict[int, list[str]] = {}
        self._holders: dict[Key, Holder] = {}
        self._seq = 0
        self._serial = 0
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._takers: list[Callable[[Stop], bool]] = []
        supervision.on_exit.append(self._lost)

    # who asks people

    def stops(self) -> Sequence[Stop]:
        """Return those that wait for a line, by mesh and rank. Any thread."""
        with self._changed:
            if self._in_order is None:
                found = self._stops.values()
                self._in_order = sorted(found, key=lambda stop: (stop.mesh, stop.rank, stop.key))
            return self._in_order

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed()` in the inbox thread when a rank stops or goes on; returns the undo."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def take(self, taker: Callable[[Stop], bool]) -> Callable[[], None]:
        """Ask `taker(stop)`, in the inbox thread, whether somebody will answer; returns the
        undo."""
        self._takers.append(taker)
        return lambda: self._takers.remove(taker)

    def refuse(self, key: Key) -> None:
        """Let a rank go on where nobody answers it."""
        with self._changed:
            if key not in self._stops or key in self._answers:
                return
        self._pass_over(key)

    def send(self, key: Key, line: str) -> Answer:
        """Type a line at a prompt. Returns at once."""
        answer = Answer()
        with self._changed:
            if key not in self._stops or key in self._answers:
                answer.state = "gone" if key not in self._stops else "busy"
                return answer
            self._answers[key] = answer
        self._request(key, "line", line)
        return answer

    def wait(self, ends: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until something has come of what was sent, or of another's stop: until `ends()`.
        Not in the inbox thread."""
        with self._changed:
            return self._changed.wait_for(ends, timeout_s)

    @property
    def is_quiet(self) -> bool:
        """Whether no rank has stopped just now, so that those that have may be told of."""
        newest = max((stop.at for stop in self.stops()), default=0.0)
        return time.monotonic() - newest > QUIET_S

    def gather(self) -> None:
        """Wait until all ranks of a mesh have stopped, or no more do: they are told of together.
        Not in the inbox thread."""
        limit_s = time.monotonic() + GATHER_S
        with self._changed:
            while not self._have_all_stopped() and self._others_stop(limit_s):
                continue

    def _others_stop(self, limit_s: float) -> bool:
        # for as long as they stop together
        known, left_s = self._serial, min(QUIET_S, limit_s - time.monotonic())
        return self._changed.wait_for(lambda: self._serial != known, left_s)

    def _have_all_stopped(self) -> bool:
        stopped, dead = {process for process, _ in self._stops}, self.proc.dead.keys()
        meshes = [state for state in list(self.supervision.states.values()) if state.kind == "proc"]
        living = [set(state.processes) - dead for state in meshes]
        return all(ranks <= stopped for ranks in living if ranks & stopped)

    def hold(self, key: Key, who: Holder, *, takes: bool = False) -> str:
        """Make a prompt somebody's; "" if it is now, else the name of whose it is, unless `who`
        takes it from them."""
        with self._changed:
            holder = self._holders.get(key)
            if holder is not None and holder is not who and not takes:
                return holder.name
            self._holders[key] = who
        if holder is not None and holder is not who:
            holder.lose(key, who.name)
        return ""

    def release(self, who: Holder) -> None:
        with self._changed:
            self._holders = {key: each for key, each in self._holders.items() if each is not who}

    def complete(self, key: Key, line: str, timeout_s: float) -> list[str]:
        """Return what the last word of a line may become, if the rank tells it in time."""
        seq = self._request(key, "complete", line)
        with self._changed:
            self._changed.wait_for(lambda: seq in self._words or key not in self._stops, timeout_s)
            return self._words.pop(seq, [])

    def _request(self, key: Key, kind: str, line: str = "") -> int:
        with self._changed:
            self._seq = seq = self._seq + 1
        process, number = key
        self.proc.control(process, debug.DebugInput(number, seq, kind, line))
        self.proc.links.flush()
        return seq

    # the inbox thread

    def on_event(self, told: debug.DebugEvent, message: Message) -> None:
        """Take what a rank tells of a debugger."""
        key = message.source, told.stop
        if told.event == "asks":
            self._asks(key, told)
        elif told.event == "goes":
            self._goes(key, told.text, stepping=told.stepping)
        else:
            with self._changed:
                self._words[told.seq] = told.words or []
                self._changed.notify_all()

    def _asks(self, key: Key, told: debug.DebugEvent) -> None:
        with self._changed:
            known, answer = self._stops.get(key), self._answers.pop(key, None)
            stop = self._stop_of(key, told) if known is None else None
            if stop is None and known is not None:
                stop = replace(known, prompt=told.prompt)
            assert stop is not None
            self._stops[key] = stop
            self._in_order = None
            if answer is not None:
                answer.text += told.text
                answer.state = "asks"
            self._changed.notify_all()
        is_new = known is None and answer is None
        if is_new and not self._is_taken(stop):
            self._pass_over(key)
        else:
            self._tell()

    def _stop_of(self, key: Key, told: debug.DebugEvent) -> Stop:
        place = place_of(self.supervision, key[0])
        self._serial += 1
        return Stop(
            key=key, mesh=place.mesh, rank=place.rank, tag=told.tag, what=told.what,
            thread=told.thread, kind=told.kind, file=told.file, line=told.line,
            function=told.function, text=told.text, prompt=told.prompt, serial=self._serial,
            at=time.monotonic(),
        )  # fmt: skip

    def _goes(self, key: Key, text: str, *, stepping: bool) -> None:
        with self._changed:
            self._drop(key)
            answer = self._answers.get(key) if stepping else self._answers.pop(key, None)
            if answer is not None:
                answer.text += text
                answer.state = "runs" if stepping else "gone"
            self._changed.notify_all()
        self._tell()

    def _is_taken(self, stop: Stop) -> bool:
        if stop.kind == "post-mortem":  # somebody has asked for it
            return True
        if self._mode == "pass" and stop.kind != debug.INPUT:
            return False
        if any(taker(stop) for taker in list(self._takers)):
            return True
        if stop.kind == debug.INPUT:
            return False
        if self._mode == "stop" or (not self._takers and sys.stdin is not None and _is_terminal()):
            if len(self._stops) == 1:
                sys.stderr.write(HINT)
            return True
        return False

    def _pass_over(self, key: Key) -> None:
        with self._changed:
            self._drop(key)
        self._request(key, "pass")

    def _drop(self, key: Key) -> None:
        self._stops.pop(key, None)
        self._in_order = None

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _lost(self, ended: Exit) -> None:
        with self._changed:
            lost = [key for key in [*self._stops, *self._answers] if key[0] == ended.process]
            for key in lost:
                self._drop(key)
                if (answer := self._answers.pop(key, None)) is not None:
                    answer.state = "lost"
            self._changed.notify_all()
        if lost:
            self._tell()


def _is_terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except ValueError:  # it is closed
        return False


class PostMortem:
    """The frames of what failed last on ranks: opened, kept or let go.

    Asking waits no longer than `ANSWER_S`, whatever ranks do; who does not answer is missing. Not
    to be called in the inbox thread.
    """

    def __init__(self, service: DebugService) -> None:
        self._service = service
        self._proc = service.proc
        self._supervision = service.supervision
        self._stopping: set[int] = set()  # meshes, by number, whose ranks stop where they fail
        self._supervision.on_heal.append(self._healed)

    def open_failed(self, processes: Iterable[int], tag: int | None = None) -> list[Key]:
        """Let these stand in the frames of their last failure, or of the last for a notebook cell.

        Returns their debuggers; of a process that keeps nothing, none.
        """
        told = self._ask(processes, debug.OpenPostMortem(tag))
        keys = [(process, said.stop) for process, said in told.items() if said.stop is not None]
        service = self._service
        service.wait(lambda: {stop.key for stop in service.stops()}.issuperset(keys), ANSWER_S)
        return keys

    def stop_at_failure(self, processes: Iterable[int], *, on: bool) -> list[int]:
        """Have these stop where their code fails, or no longer; so do those that take a place in
        the same mesh later. Returns who has heard."""
        wanted = set(processes)
        numbers = {state.number for state in self._meshes() if wanted & {*state.processes}}
        self._stopping = self._stopping | numbers if on else self._stopping - numbers
        return list(self._ask(wanted, debug.StopAtFailure(on)))

    def forget_failed(self, processes: Iterable[int]) -> list[int]:
        """Let go of the frames, and of what they hold. Returns who has heard."""
        return list(self._ask(processes, debug.ForgetFailed()))

    def living(self) -> list[int]:
        dead = self._proc.dead
        return [each for state in self._meshes() for each in state.processes if each not in dead]

    def _healed(self, state: MeshState, ranks: Iterable[int]) -> None:
        if state.number in self._stopping:
            processes = [state.processes[rank] for rank in ranks]
            self._ask(processes, debug.StopAtFailure(on=True))

    def _meshes(self) -> list[ProcsState]:
        states = list(self._supervision.states.values())
        return [state for state in states if isinstance(state, ProcsState) and state.ended is None]

    def _ask(self, processes: Iterable[int], request: Request[A]) -> dict[int, A]:
        return ask_all.ask(self._proc, dict.fromkeys(processes, request), ANSWER_S)


class PauseService:
    """How long debuggers have paused ranks of a mesh: a rank asks, all ranks of it are asked."""

    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision

    def on_asked(self, wanted: GetHeldOfMesh, message: Message) -> None:
        """Answer for how long; the asking is done by a thread of its own. Inbox thread."""
        threading.Thread(
            target=self._answer, args=(wanted.within_s, message), name="monarch-pauses", daemon=True
        ).start()

    def _answer(self, within_s: float, message: Message) -> None:
        members = {
            process
            for state in list(self._supervision.states.values())
            if state.kind == "proc" and message.source in state.processes
            for process in state.processes
        }
        told = ask_all.ask(self._proc, dict.fromkeys(members, GetHeldSpans()), PAUSES_S)
        spans = [span for answer in told.values() for span in answer.spans]
        self._proc.answer(message, HeldFor(covered_s(spans, within_s)))


def covered_s(spans: Iterable[Span], within_s: float) -> float:
    """Return how many of the last `within_s` seconds are in any of the spans, told as seconds ago.

    Example:
        >>> covered_s([(10.0, 6.0), (7.0, 5.0), (2.0, 0.0)], within_s=9.0)
        6.0
    """
    total, until = 0.0, float("inf")  # walked from long ago to now
    for start, end in sorted(spans, reverse=True):
        start = min(start, within_s, until)  # noqa: PLW2901  what is older or counted already
        end = max(end, 0.0)  # noqa: PLW2901
        if start > end:
            total += start - end
            until = end
    return total
