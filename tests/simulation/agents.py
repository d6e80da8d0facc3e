"""The agent of a host. What messages and ends mean is decided by the real `RankStates` and
`Keeping`; what is done then is simulated, in the order of `host/agent/agent.py`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Message
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages import codec, keeping
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.hosts import ControllerLost, KeptHere
from monarch_nb.host.agent import events
from monarch_nb.host.agent.events import Asker
from monarch_nb.host.agent.keeping import Keeping, Then
from monarch_nb.host.agent.rank_states import RankStates, Timing
from monarch_nb.net.wire import gateway_id
from tests.simulation.clock import Loop
from tests.simulation.ledger import Watches
from tests.simulation.ranks import Rank
from tests.simulation.site import Links, Place, Site

if TYPE_CHECKING:
    from tests.simulation.world import World

GUESSED = "a key of somebody else"
_ORDERS = messages.Spawn | messages.Stop | messages.StopAll | messages.Kill | keeping.Keep


class Agent:
    """`on_end(code)` is called when its process ends; None: it was killed."""

    def __init__(
        self,
        world: World,
        site: Site,
        process: int,
        controller: int,
        on_end: Callable[[int | None], None],
    ) -> None:
        self.world = world
        self.process = process
        self.ranks: dict[int, Rank] = {}
        self.loop = Loop(world.clock)
        self.is_over = False
        self.states = RankStates(process, controller, Timing.of(world.config))
        is_elsewhere = controller >> HOST_SHIFT != process >> HOST_SHIFT
        self.keeping = Keeping(is_elsewhere=is_elsewhere)
        self.watches = Watches(world.ledger, process)
        self.owner_pid: int | None = None
        self._site = site
        self._on_end = on_end
        self._zygote = 0  # which one; ranks that it was asked for end with it
        self._wakes_at: float | None = None
        self._handlers: dict[type, Callable[[Any, Asker], None]] = {
            messages.Spawn: self._spawn,
            messages.Stop: self._stop,
            messages.StopAll: self._stop_all,
            messages.Shutdown: self._shutdown,
            messages.Kill: self._kill,
            messages.Watch: self._watch,
            messages.Hello: self._hello,
            keeping.Keep: self._keep,
            keeping.Adopt: self._adopt,
            ControllerLost: self._controller_lost,
        }
        self._kinds = {codec.verb_of(kind): kind for kind in self._handlers}
        self._links = Links(Place(site, self.loop), process, self._on_message)
        self._links.start()

    # messages

    def _on_message(self, message: Message) -> None:
        body = codec.json_of(message.payload)
        kind = self._kinds[body["verb"]]
        asker = Asker(message.source, message.reply, message.rank, message.tag)
        if (fenced := self.keeping.fenced(message.source)) is not None:
            self._answer(asker, fenced)
            return
        wanted = codec.decode(kind, body)
        self._check_driver(wanted, asker)
        self._handlers[kind](wanted, asker)

    def _check_driver(self, wanted: object, asker: Asker) -> None:
        is_driver = asker.process == self.states.controller
        if isinstance(wanted, _ORDERS) and not is_driver and self.world.drove(asker.process):
            what = f"{asker.process:x} orders {wanted}, and drives agent {self.process:x} no more"
            self.world.ledger.is_wrong(what)

    def _tell(self, process: int, message: object) -> None:
        if not self.states.is_gone(process):
            self._post(Asker(process, frames.CONTROL_PORT), codec.encode(message))

    def _answer(self, asker: Asker, answer: object) -> None:
        if asker.port and not self.states.is_gone(asker.process):
            self._post(asker, codec.encode_answer(answer))

    def _post(self, to: Asker, text: bytes) -> None:
        header = (frames.CONTROL, 0, 0, to.rank, to.tag, to.port, self.process, 0)
        self._links.send(to.process, [HEADER.pack(*header) + text])

    # events and effects

    def feed(self, event: events.Event) -> None:
        self._note(event)
        for effect in self._effects(event):
            match effect:
                case events.Tell(process, message):
                    self._check_living(process)
                    if isinstance(message, messages.Exited):
                        self.watches.ended(message.proc)
                        self.watches.told(process, message.proc)
                    self._tell(process, message)
                case events.Answer(asker):
                    self._check_living(asker.process)
                    self._answer(asker, Done())
                case events.Kill(proc, number):
                    self.signal(proc, number)
                case events.Finish():
                    self._end(0)
        self._wake_in_time()

    def _effects(self, event: events.Event) -> Sequence[events.Effect]:
        before = self.states.procs
        effects = self.states.feed(event, self.world.clock.now)
        # one that is given up is at its end, also where its process is yet to be killed, and where
        # nobody is told as there is no controller: the next one asks, as if it had ended before
        for proc in set(before).difference(self.states.procs):
            self.watches.ended(proc)
        return effects

    def _note(self, event: events.Event) -> None:
        match event:
            case events.Asked(procs, owner):
                for proc in procs:
                    self.watches.wants(owner, proc)
                    self.watches.wants(self.states.controller, proc)
            case events.Watched(watcher, procs):
                for proc in procs:
                    self.watches.wants(watcher, proc)
            case events.Ended(proc):
                self.watches.ended(proc)

    def _check_living(self, process: int) -> None:
        if self.states.is_gone(process):
            what = f"agent {self.process:x} has something for {process:x}, which has ended"
            self.world.ledger.is_wrong(what)

    def _wake_in_time(self) -> None:
        dues = [due for due in (self.states.deadline(), self.keeping.due()) if due is not None]
        now = self.world.clock.now
        due = min(dues, default=None)
        if due is not None and (self._wakes_at is None or due < self._wakes_at):
            self._wakes_at = due
            self.loop.after(max(due - now, 0.0) + 1e-6, self._wake)

    def _wake(self) -> None:
        self._wakes_at = None
        self.feed(events.Tick())
        if self.keeping.is_over(self.world.clock.now):
            self._end(0)

    # ranks and the zygote

    def _spawn(self, spawn: messages.Spawn, asker: Asker) -> None:
        if (why := self.states.why_none(spawn.procs)) is not None:
            self._answer(asker, Refused(f"spawn: {why}"))
            return
        slowest_s = 2.0 if self.world.has_slow_forks else 0.05
        for proc in spawn.procs:
            forked = self._forked(proc, spawn, self.states.controller, self._zygote)
            self.loop.after(self.world.some_s(slowest_s), forked)
        self.feed(events.Asked(spawn.procs, spawn.owner or asker.process))
        self._answer(asker, Done())

    def _forked(
        self, proc: int, spawn: messages.Spawn, controller: int, zygote: int
    ) -> Callable[[], None]:
        def forked() -> None:
            if zygote != self._zygote:
                return
            if self.world.chance(0.01):
                self.feed(events.Ended(proc, reason="it could not be forked"))
                return
            rank = self.ranks[proc] = Rank(self, self._site, proc, spawn, controller)
            self.feed(events.Forked(proc, rank.pid))
            rank.loop.after(self.world.some_s(0.1), rank.boot)
            self.loop.after(0.1, lambda: self._pulsed(rank, up=True))

        return forked

    def _pulsed(self, rank: Rank, *, up: bool) -> None:
        if not rank.is_over and rank.loop.is_frozen is not up:
            self.feed(events.Pulsed(rank.process, up))

    def freeze_rank(self, rank: Rank, seconds: float) -> None:
        """Stop a rank, and let it go on after so long."""
        rank.loop.freeze(seconds)
        timeout_s = self.world.config.pulse_timeout_s
        self.loop.after(timeout_s, lambda: self._pulsed(rank, up=False))
        self.loop.after(seconds + 0.001, lambda: self._pulsed(rank, up=True))

    def signal(self, proc: int, number: int) -> None:
        rank = self.ranks.get(proc)
        if rank is not None and number in (signal.SIGKILL, signal.SIGTERM):
            rank.exit(signal=number)

    def rank_exits(self, rank: Rank, code: int | None, number: int | None) -> None:
        def ended() -> None:
            if self.ranks.pop(rank.process, None) is not None:
                self.feed(events.Ended(rank.process, code=code, signal=number))

        if not self.is_over:
            self.loop.after(self.world.some_s(0.01), ended)

    def kill_zygote(self) -> None:
        """It ends, and its ranks with it."""
        ranks = list(self.ranks.values())
        self._zygote += 1
        self.loop.soon(lambda: self.feed(events.ZygoteLost("killed")))
        for rank in ranks:
            rank.exit(signal=signal.SIGKILL)

    # owners

    def owner_ended(self) -> None:
        match self.keeping.owner_ended(self.states.procs, ending=self.states.ending):
            case Then.END:
                self._end(0)
            case Then.GO_ON_ALONE:
                self._go_on_alone()

    def _controller_lost(self, _: ControllerLost, asker: Asker) -> None:
        is_own = asker.process == gateway_id(self.process >> HOST_SHIFT)
        then = self.keeping.controller_lost(ending=self.states.ending)
        if is_own and then is Then.GO_ON_ALONE:
            self._go_on_alone()

    def _go_on_alone(self) -> None:
        self.keeping.begin(self.world.clock.now)
        self.watches.left(self.states.controller)
        self.feed(events.ControllerLost(self.keeping.procs))

    def _keep(self, keep: keeping.Keep, asker: Asker) -> None:
        if self.keeping.is_elsewhere:
            self._tell(gateway_id(self.process >> HOST_SHIFT), KeptHere(keep.for_s > 0))
        self.keeping.keep(keep)
        self._answer(asker, Done())

    def _adopt(self, adopt: keeping.Adopt, asker: Asker) -> None:
        refused = self.keeping.refusal(adopt, self.owner_pid)
        if refused is not None:
            self._answer(asker, refused)
            return
        old, new = self.states.controller, asker.process
        self._check_adoption(adopt, old, new)
        if not self.keeping.is_elsewhere:
            if not self.keeping.is_alone:
                self._tell(old, keeping.TakenOver(adopt.who, 0.0))
            self.owner_pid = adopt.owner_pid
        alone_s = self.keeping.end(old, new, self.world.clock.now)
        self.watches.adopted(old, new)
        self.feed(events.Adopted(new))
        self.world.drives(new)
        procs = self.states.procs
        pids = [self.ranks[proc].pid if proc in self.ranks else 0 for proc in procs]
        here = keeping.Adopted(procs, pids, [], 1, 0, alone_s)
        self._answer(asker, here)

    def _check_adoption(self, adopt: keeping.Adopt, old: int, new: int) -> None:
        if adopt.key == GUESSED:
            self.world.ledger.is_wrong(f"{new:x} takes ranks over with a key that is none")
        if not self.keeping.is_alone and not adopt.fence:
            self.world.ledger.is_wrong(f"{new:x} takes ranks over from {old:x}, and fences it not")

    def _end(self, code: int | None) -> None:
        if not self.is_over:
            self.kill()
            self._on_end(code)

    def crash(self) -> None:
        """Be killed by somebody else."""
        self.kill()
        self._on_end(None)

    def kill(self) -> None:
        """End its process, and with it the zygote and the ranks."""
        self.is_over = self.loop.is_over = True
        self._site.end(self.process)
        for rank in list(self.ranks.values()):
            rank.exit(signal=signal.SIGKILL)

    # other requests

    def _stop(self, stop: messages.Stop, asker: Asker) -> None:
        self.feed(events.StopAsked(asker, stop.procs, self._grace_s(stop.grace_s)))

    def _grace_s(self, wanted_s: float | None) -> float:
        return self.world.config.exit_s if wanted_s is None else wanted_s

    def _stop_all(self, stop: messages.StopAll, asker: Asker) -> None:
        procs = list(self.states.procs)
        self.feed(events.StopAsked(asker, procs, self._grace_s(stop.grace_s)))

    def _shutdown(self, shutdown: messages.Shutdown, asker: Asker) -> None:
        self.feed(events.StopAsked(asker, None, self._grace_s(shutdown.grace_s)))

    def _kill(self, kill: messages.Kill, asker: Asker) -> None:
        self.feed(events.KillAsked(kill.procs, kill.signal))
        self._answer(asker, Done())

    def _watch(self, watch: messages.Watch, asker: Asker) -> None:
        self._answer(asker, Done())
        self.feed(events.Watched(asker.process, watch.procs))

    def _hello(self, _: messages.Hello, asker: Asker) -> None:
        self._answer(asker, messages.Here(1, "simulated", 0))
