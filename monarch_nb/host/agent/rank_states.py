"""The agent's bookkeeping of ranks: who watches whom, who is silent, what is answered when.

Pure: `feed(event, now) -> effects`. It reads no clock, sends nothing and kills nobody; what it
wants done it returns. A rank only moves forward (asked for, forked, gone) and its id is never used
twice.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from monarch_nb.config import RANK_COMMAND, Config
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages.keeping import ControllerGone
from monarch_nb.host.agent import events
from monarch_nb.host.agent.events import Answer, Asker, Effect, Ended, Event, Kill, Tell

_REMEMBERED: Final = 20_000  # gone ranks that a late watcher is told of in full
_ORPHANED_S: Final = 2.0  # by then a rank that has lost its zygote was seen to end
_BOOT_GRACES: Final = 3  # of `grace_s`: a forked rank that was never heard in this time is silent
_KILLED_S: Final = 2.0  # by then a command that was killed was seen to end


@dataclass(frozen=True)
class Timing:
    """The deadlines, all derived from `Config`."""

    doubt_s: float = 0.25
    """A link that broke is news after this time: before, the rank's exit may explain it."""
    exit_s: float = 5.0
    """For the ranks whose owner has ended."""
    grace_s: float = 10.0
    """A rank that is silent for longer is unreachable: given up and killed."""
    start_s: float = 120.0
    """A started rank that was never heard by then will never be one."""
    unknown_s: float = 30.0
    """A watched process that nobody has asked for by then is reported gone."""

    @staticmethod
    def of(config: Config) -> Timing:
        return Timing(config.pulse_interval_s / 2, config.exit_s, config.grace_s, config.start_s)


@dataclass
class _Rank:
    proc: int
    owner: int
    watchers: set[int]
    since: float  # forked, or asked for
    command: str = ""  # of a rank that is started, not forked
    pid: int | None = None
    heard: bool = False
    lost_at: float | None = None
    silent: bool = False
    unreachable_at: float | None = None  # unless it is heard before
    kill_at: float | None = None
    stopping: bool = False
    asked: bool = False  # to stop, by somebody; not because its owner has ended
    end_at: float | None = None  # without its zygote
    end_reason: str = ""


@dataclass
class _Stop:
    asker: Asker
    remaining: set[int]
    final: bool


@dataclass
class RankStates:
    agent: int
    controller: int
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._gone: dict[int, messages.Exited] = {}
        self._stops: list[_Stop] = []
        self._expected: dict[tuple[int, int], float] = {}  # (watcher, proc) -> give up at
        self.ending = False
        self._is_alone = False

    @property
    def procs(self) -> list[int]:
        return list(self._ranks)

    @property
    def silent(self) -> set[int]:
        """The ranks that cannot be heard."""
        return {proc for proc, rank in self._ranks.items() if rank.silent}

    def why_none(self, procs: Sequence[int]) -> str | None:
        """Return why ranks with these ids cannot be asked for; None: they can."""
        if self.ending:
            return "this agent is shutting down"
        used = [proc for proc in procs if proc in self._ranks or proc in self._gone]
        return f"process ids are used once: {used}" if used else None

    def is_gone(self, proc: int) -> bool:
        """Return whether this was a rank of ours and has ended, or a controller that has gone."""
        return proc in self._gone or (self._is_alone and proc == self.controller)

    def feed(self, event: Event, now: float) -> list[Effect]:
        """Return what is to be done about `event`, and about all that is due by now."""
        effects = [*self._on(event, now), *self._due(now)]
        return [effect for effect in effects if not self._is_for_ended(effect)]

    def deadline(self) -> float | None:
        """Return when `Tick` has to come at the latest."""
        return min(self._deadlines(), default=None)

    def _is_for_ended(self, effect: Effect) -> bool:
        match effect:
            case Tell(process, _) | Answer(Asker(process)):
                return self.is_gone(process)
        return False

    # ------------------------------------------------------------------------------- events

    def _on(self, event: Event, now: float) -> Iterator[Effect]:
        match event:
            case events.Asked():
                yield from self._asked(event, now)
            case events.Forked(proc, pid):
                yield from self._forked(proc, pid, now)
            case Ended():
                yield from self._ended(event, now)
            case events.Watched(watcher, procs):
                yield from self._watched(watcher, procs, now)
            case events.Pulsed(proc, up):
                yield from self._pulsed(proc, up, now)
            case events.StopAsked():
                yield from self._stop_asked(event, now)
            case events.KillAsked(procs, number):
                yield from self._kill_asked(procs, number, now)
            case events.Tick():
                pass
            case _:
                yield from self._on_other_process(event, now)

    def _on_other_process(self, event: Event, now: float) -> Iterator[Effect]:
        # what happens to the zygote, or to the controller
        match event:
            case events.ControllerLost(kept):
                yield from self._controller_lost(kept, now)
            case events.Adopted(controller):
                self._adopted(controller)
            case events.WatcherGone(watcher):
                for rank in self._ranks.values():
                    rank.watchers.discard(watcher)
            case events.ZygoteLost(text):
                yield from self._zygote_lost(text, now)

    def _asked(self, event: events.Asked, now: float) -> Iterator[Effect]:
        owner = event.owner
        for proc in event.procs:
            waiting = {who for who, of in self._expected if of == proc}
            for who in waiting:
                del self._expected[who, proc]
            watchers = {self.controller, owner} | waiting
            command = event.commands.get(proc, "")
            self._ranks[proc] = _Rank(proc, owner, watchers, now, command)
        if owner in self._gone:
            yield from self._stop_owned_by(owner, now)

    def _forked(self, proc: int, pid: int, now: float) -> Iterator[Effect]:
        if (rank := self._ranks.get(proc)) is None:
            return
        rank.pid, rank.since = pid, now
        for process in dict.fromkeys((rank.owner, self.controller)):
            yield Tell(process, messages.Spawned([proc], [pid]))

    def _ended(self, event: Ended, now: float) -> Iterator[Effect]:
        if (rank := self._ranks.pop(event.proc, None)) is None:
            return
        event = event._replace(reason=event.reason or _reason_of(rank))
        exited = messages.Exited(pid=rank.pid, asked=rank.asked, **event._asdict())
        self._remember(exited)
        for other in self._ranks.values():
            other.watchers.discard(event.proc)
        # who can heal hears of it first: others fail by it, and a heal that follows has to find it
        first = {self.controller, rank.owner}
        for watcher in sorted(rank.watchers, key=lambda each: (each not in first, each)):
            yield Tell(watcher, exited)
        yield from self._stop_owned_by(event.proc, now)
        yield from self._answer_stops(event.proc)

    def _remember(self, exited: messages.Exited) -> None:
        self._gone[exited.proc] = exited
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        for key in [key for key in self._expected if key[0] == exited.proc]:
            del self._expected[key]

    def _stop_owned_by(self, owner: int, now: float) -> Iterator[Effect]:
        for rank in list(self._ranks.values()):
            if rank.owner == owner:
                yield from self._ask_to_exit(rank, self.timing.exit_s, now)

    def _answer_stops(self, proc: int) -> Iterator[Effect]:
        for stop in list(self._stops):
            stop.remaining.discard(proc)
            if not stop.remaining:
                self._stops.remove(stop)
                yield Answer(stop.asker)
                if stop.final:
                    yield events.Finish()

    def _watched(self, watcher: int, procs: Sequence[int], now: float) -> Iterator[Effect]:
        for proc in procs:
            if (rank := self._ranks.get(proc)) is not None:
                rank.watchers.add(watcher)
            elif proc in self._gone:
                yield Tell(watcher, self._gone[proc])
            elif proc not in (self.agent, self.controller):  # these outlive whoever asks
                self._expected.setdefault((watcher, proc), now + self.timing.unknown_s)

    def _pulsed(self, proc: int, up: bool, now: float) -> Iterator[Effect]:
        if (rank := self._ranks.get(proc)) is None:
            return
        if not up:
            rank.lost_at = now
            return
        if rank.silent:
            yield from self._tell_pulse(rank, messages.Heard, now)
        rank.heard, rank.lost_at, rank.silent, rank.unreachable_at = True, None, False, None

    def _stop_asked(self, event: events.StopAsked, now: float) -> Iterator[Effect]:
        wanted = self._ranks if event.procs is None else event.procs
        ranks = [self._ranks[proc] for proc in wanted if proc in self._ranks]
        final = event.procs is None
        self.ending = self.ending or final
        for rank in ranks:
            rank.asked = True
            yield from self._ask_to_exit(rank, event.grace_s, now)
        stop = _Stop(event.asker, {rank.proc for rank in ranks}, final)
        self._stops.append(stop)
        yield from self._answer_stops(0)

    def _ask_to_exit(self, rank: _Rank, grace_s: float, now: float) -> Iterator[Effect]:
        rank.stopping, rank.unreachable_at = True, None
        due = now if rank.silent else now + grace_s  # one that is silent would not hear it
        rank.kill_at = min(due, rank.kill_at or due)
        if grace_s > 0:
            yield Tell(rank.proc, messages.Leave(grace_s))

    def _kill_asked(self, procs: Sequence[int], number: int, now: float) -> Iterator[Effect]:
        for rank in [self._ranks[proc] for proc in procs if proc in self._ranks]:
            if rank.pid is not None:
                yield Kill(rank.proc, number)
            elif number in (signal.SIGKILL, signal.SIGTERM):
                rank.kill_at = now  # as soon as it is forked

    def _controller_lost(self, kept: Collection[int], now: float) -> Iterator[Effect]:
        self._is_alone = True
        goes_on = self._with_owned(kept)
        for rank in list(self._ranks.values()):
            if rank.proc in goes_on:
                yield Tell(rank.proc, ControllerGone(self.controller))
            else:
                yield from self._ask_to_exit(rank, self.timing.exit_s, now)

    def _with_owned(self, procs: Collection[int]) -> set[int]:
        found: set[int] = set()
        new = set(procs)
        while new:
            found |= new
            new = {rank.proc for rank in self._ranks.values() if rank.owner in new} - found
        return found

    def _adopted(self, controller: int) -> None:
        old, self.controller, self._is_alone = self.controller, controller, False
        for rank in self._ranks.values():
            rank.watchers = rank.watchers - {old} | {controller}
            if rank.owner == old:
                rank.owner = controller
        for watcher, proc in [key for key in self._expected if key[0] == old]:
            del self._expected[watcher, proc]

    def _zygote_lost(self, text: str, now: float) -> Iterator[Effect]:
        yield Tell(self.controller, messages.ZygoteFailed("zygote", text, self.procs))
        for rank in self._ranks.values():
            # a rank without a process never gets one; the agent itself sees the others end
            forked = rank.pid is not None
            rank.end_at = now + _ORPHANED_S if forked else now
            rank.end_reason = (
                "the zygote ended, and the rank with it"
                if forked
                else "the zygote ended before it was forked"
            )

    # -------------------------------------------------------------------------------- time

    def _due(self, now: float) -> Iterator[Effect]:
        for rank in list(self._ranks.values()):
            if rank.end_at is not None and rank.end_at <= now:
                yield from self._ended(Ended(rank.proc, reason=rank.end_reason), now)
                continue
            if (due := self._started_by(rank)) is not None and due <= now:
                yield from self._kill_unstarted(rank, now)
            if rank.pid is not None and rank.kill_at is not None and rank.kill_at <= now:
                rank.kill_at = None
                yield Kill(rank.proc, signal.SIGKILL)
            if (due := self._silent_at(rank)) is not None and due <= now:
                rank.silent, rank.unreachable_at = True, now + self.timing.grace_s
                yield from self._tell_pulse(rank, messages.Silent, now)
            if rank.unreachable_at is not None and rank.unreachable_at <= now:
                yield from self._give_up_silent(rank, now)
        for (watcher, proc), due in list(self._expected.items()):
            if due <= now:
                del self._expected[watcher, proc]
                yield Tell(watcher, _unknown_process(proc))

    def _kill_unstarted(self, rank: _Rank, now: float) -> Iterator[Effect]:
        # its command runs and is no rank; its end will be told with what it wrote last
        rank.end_at = now + _KILLED_S
        rank.end_reason = (
            f"`{rank.command}` was started {now - rank.since:.0f} s ago and never became a rank. A "
            f"command has to execute `python {RANK_COMMAND}` in the end; one that needs longer "
            "gets it by MONARCH_NB_START_S"
        )
        yield Kill(rank.proc, signal.SIGKILL)

    def _give_up_silent(self, rank: _Rank, now: float) -> Iterator[Effect]:
        # it must not come back
        since = rank.since if rank.lost_at is None else rank.lost_at
        yield Kill(rank.proc, signal.SIGKILL)
        yield from self._ended(Ended(rank.proc, unreachable_s=round(now - since, 3)), now)

    def _deadlines(self) -> Iterator[float]:
        for rank in self._ranks.values():
            if rank.end_at is not None:
                yield rank.end_at
            if rank.unreachable_at is not None:
                yield rank.unreachable_at
            if rank.kill_at is not None and rank.pid is not None:
                yield rank.kill_at
            if (due := self._silent_at(rank)) is not None:
                yield due
            if (due := self._started_by(rank)) is not None:
                yield due
        yield from self._expected.values()

    def _silent_at(self, rank: _Rank) -> float | None:
        # one that was told to exit never counts as silent
        if rank.silent or rank.stopping or rank.pid is None:
            return None
        if rank.lost_at is not None:
            return rank.lost_at + self.timing.doubt_s
        if rank.heard or rank.command:
            return None
        return rank.since + _BOOT_GRACES * self.timing.grace_s

    def _started_by(self, rank: _Rank) -> float | None:
        if not rank.command or rank.heard or rank.stopping or rank.pid is None or rank.end_at:
            return None
        return rank.since + self.timing.start_s

    def _tell_pulse(
        self, rank: _Rank, kind: type[messages.Heard | messages.Silent], now: float
    ) -> Iterator[Effect]:
        since = rank.since if rank.lost_at is None else rank.lost_at
        for watcher in sorted(rank.watchers):
            yield Tell(watcher, kind(rank.proc, round(now - since, 3)))


def _reason_of(rank: _Rank) -> str | None:
    if not rank.command or rank.asked:
        return None
    unheard = None if rank.heard else f"`{rank.command}` ended before it was heard as a rank"
    return rank.end_reason or unheard


def _unknown_process(proc: int) -> messages.Exited:
    reason = "no such process was ever asked for on this host"
    return messages.Exited(pid=None, asked=False, **Ended(proc, reason=reason)._asdict())
