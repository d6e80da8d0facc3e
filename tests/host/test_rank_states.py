"""The agent's bookkeeping keeps its promises for every order of events."""

import signal
from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.agents import Exited, Heard, Silent
from monarch_nb.host.agent.events import (
    Answer,
    Asked,
    Asker,
    Ended,
    Finish,
    Forked,
    Kill,
    KillAsked,
    Pulsed,
    StopAsked,
    Tell,
    Tick,
    Watched,
    ZygoteLost,
)
from monarch_nb.host.agent.rank_states import RankStates, Timing

AGENT, CONTROLLER, OWNER, STRANGER = 1, 2, 3, 4
FIRST = 10


@pytest.fixture
def registry():
    return RankStates(AGENT, CONTROLLER)


def told(effects, verb):
    tells = [(each.process, said(each)) for each in effects if isinstance(each, Tell)]
    return [(process, body) for process, body in tells if body["verb"] == verb]


def said(tell):
    return codec.json_of(codec.encode(tell.message))


def running(registry, *procs, now=0.0, owner=OWNER):
    registry.feed(Asked(procs, owner), now)
    for proc in procs:
        registry.feed(Forked(proc, proc * 100), now)
        registry.feed(Pulsed(proc, up=True), now)


# ------------------------------------------------------------------------------------------- exits


def test_owner_and_controller_are_told_of_an_exit_and_so_is_who_watches(registry):
    running(registry, 10)
    registry.feed(Watched(STRANGER, [10]), 0)
    exits = told(registry.feed(Ended(10, signal=9, tail="oops"), 1), "exited")
    assert [process for process, _ in exits] == [CONTROLLER, OWNER, STRANGER]
    assert exits[0][1] == {
        "verb": "exited", "proc": 10, "pid": 1000, "code": None, "signal": 9, "reason": None,
        "tail": "oops", "oom": False, "unreachable_s": None, "asked": False,
    }  # fmt: skip


def test_who_watches_a_gone_rank_is_told_at_once(registry):
    running(registry, 10)
    registry.feed(Ended(10, code=3), 1)
    [(process, body)] = told(registry.feed(Watched(STRANGER, [10]), 2), "exited")
    assert (process, body["code"]) == (STRANGER, 3)


def test_a_process_nobody_ever_asked_for_is_reported_gone_after_a_while(registry):
    assert registry.feed(Watched(STRANGER, [99]), 0) == []
    assert registry.deadline() == registry.timing.unknown_s
    assert registry.feed(Tick(), 29) == []
    [(process, body)] = told(registry.feed(Tick(), 30), "exited")
    assert (process, body["proc"], body["code"]) == (STRANGER, 99, None)
    assert registry.deadline() is None


def test_a_watch_may_come_before_the_spawn(registry):
    registry.feed(Watched(STRANGER, [10]), 0)
    running(registry, 10, now=1)
    assert registry.feed(Tick(), 100) == []
    assert STRANGER in dict(told(registry.feed(Ended(10, code=0), 101), "exited"))


def test_watching_the_controller_or_the_agent_says_nothing(registry):
    registry.feed(Watched(STRANGER, [CONTROLLER, AGENT]), 0)
    assert registry.feed(Tick(), 1000) == []


def test_a_gone_rank_is_told_nothing(registry):
    running(registry, 10, 11)
    registry.feed(Watched(10, [11, 99]), 0)
    registry.feed(Ended(10, code=0), 1)
    later = [*registry.feed(Ended(11, code=0), 2), *registry.feed(Tick(), 100)]
    assert 10 not in dict(told(later, "exited"))


def test_what_a_rank_has_spawned_ends_with_it(registry):
    running(registry, 10)
    running(registry, 11, 12, owner=10)
    effects = registry.feed(Ended(10, signal=9), 1)
    assert [process for process, _ in told(effects, "exit")] == [11, 12]
    kills = registry.feed(Tick(), 1 + registry.timing.exit_s)
    assert kills == [Kill(11, signal.SIGKILL), Kill(12, signal.SIGKILL)]


# ------------------------------------------------------------------------------------------- pulse


def test_a_broken_link_is_news_only_when_no_exit_explains_it(registry):
    running(registry, 10)
    assert registry.feed(Pulsed(10, up=False), 5) == []
    assert registry.deadline() == 5.25
    effects = registry.feed(Ended(10, code=0), 5.1)
    assert told(effects, "silent") == []
    assert registry.deadline() is None


def test_silent_and_heard_again(registry):
    running(registry, 10)
    registry.feed(Pulsed(10, up=False), 5)
    silent = told(registry.feed(Tick(), 5.25), "silent")
    assert silent == [
        (who, {"verb": "silent", "proc": 10, "since_s": 0.25}) for who in (CONTROLLER, OWNER)
    ]
    assert registry.feed(Tick(), 6) == []
    heard = told(registry.feed(Pulsed(10, up=True), 8), "heard")
    assert heard[0] == (CONTROLLER, {"verb": "heard", "proc": 10, "since_s": 3})


def test_a_rank_that_leaves_is_not_silent(registry):
    running(registry, 10)
    registry.feed(StopAsked(Asker(OWNER, 7), [10], 5), 0)
    registry.feed(Pulsed(10, up=False), 1)
    assert registry.feed(Tick(), 2) == []


def test_a_rank_that_never_came_up_is_silent_in_the_end(registry):
    registry.feed(Asked([10], OWNER), 0)
    registry.feed(Forked(10, 1000), 1)
    assert registry.feed(Tick(), 30.9) == []
    assert told(registry.feed(Tick(), 31), "silent") != []


# -------------------------------------------------------------------------------------- stop, kill


def test_a_stop_is_answered_when_the_last_one_is_gone(registry):
    running(registry, 10, 11)
    asker = Asker(OWNER, 7)
    effects = registry.feed(StopAsked(asker, [10, 11, 99], 5), 0)
    assert [process for process, _ in told(effects, "exit")] == [10, 11]
    assert not any(isinstance(e, Answer) for e in registry.feed(Ended(10, code=0), 1))
    assert Answer(asker) in registry.feed(Ended(11, code=0), 2)


def test_a_stop_of_what_is_gone_is_answered_at_once(registry):
    assert registry.feed(StopAsked(Asker(OWNER, 7), [10], 5), 0) == [Answer(Asker(OWNER, 7))]


def test_the_stubborn_are_killed_after_the_grace_and_only_once(registry):
    running(registry, 10)
    registry.feed(StopAsked(Asker(OWNER, 7), [10], 5), 0)
    assert registry.deadline() == 5
    assert registry.feed(Tick(), 5) == [Kill(10, signal.SIGKILL)]
    assert registry.feed(Tick(), 6) == []


def test_a_stop_without_grace_kills_at_once(registry):
    running(registry, 10)
    effects = registry.feed(StopAsked(Asker(OWNER, 7), [10], 0), 0)
    assert effects == [Kill(10, signal.SIGKILL)]


def test_a_second_stop_cannot_lengthen_the_grace_of_the_first(registry):
    running(registry, 10)
    registry.feed(StopAsked(Asker(OWNER, 7), [10], 1), 0)
    registry.feed(StopAsked(Asker(OWNER, 8), [10], 100), 0.5)
    assert registry.feed(Tick(), 1) == [Kill(10, signal.SIGKILL)]


def test_a_rank_that_is_to_die_before_it_is_forked_dies_when_it_is(registry):
    registry.feed(Asked([10], OWNER), 0)
    assert registry.feed(KillAsked([10, 99], signal.SIGKILL), 1) == []
    assert Kill(10, signal.SIGKILL) in registry.feed(Forked(10, 1000), 2)


def test_a_signal_goes_to_those_that_have_a_process(registry):
    running(registry, 10)
    assert registry.feed(KillAsked([10, 99], signal.SIGUSR1), 1) == [Kill(10, signal.SIGUSR1)]


def test_shutdown_answers_and_finishes_when_all_are_gone(registry):
    running(registry, 10)
    asker = Asker(CONTROLLER, 7)
    registry.feed(StopAsked(asker, None, 5), 0)
    assert registry.ending
    effects = registry.feed(Ended(10, code=0), 1)
    assert effects[-2:] == [Answer(asker), Finish()]


def test_a_rank_that_stays_silent_is_cut_off_and_killed(registry):
    running(registry, 10)
    registry.feed(Pulsed(10, up=True), 0)
    registry.feed(Pulsed(10, up=False), 1)
    assert told(registry.feed(Tick(), 1.3), "silent")
    assert registry.deadline() == 1.3 + registry.timing.grace_s
    effects = registry.feed(Tick(), 1.3 + registry.timing.grace_s)
    assert effects[0] == Kill(10, signal.SIGKILL)
    assert {body["unreachable_s"] for _, body in told(effects, "exited")} == {10.3}
    assert registry.feed(Pulsed(10, up=True), 20) == []
    assert registry.feed(Ended(10, signal=9), 20) == []


def test_a_command_that_is_no_rank_in_time_is_killed_and_said(registry):
    start_s = registry.timing.start_s
    for proc in (10, 11, 12):
        registry.feed(Asked([proc], OWNER, {proc: "sleep 9"}), 0)
        registry.feed(Forked(proc, proc * 100), 1)
    registry.feed(Pulsed(12, up=True), 50)
    assert registry.deadline() == 1 + start_s
    kills = registry.feed(Tick(), 1 + start_s)
    assert kills == [Kill(10, signal.SIGKILL), Kill(11, signal.SIGKILL)]
    registry.feed(Pulsed(10, up=True), 1 + start_s)  # too late
    [body, _] = [b for _, b in told(registry.feed(Ended(10, signal=9), 2 + start_s), "exited")]
    assert "`sleep 9` was started 120 s ago and never became a rank" in body["reason"]
    gone = told(registry.feed(Tick(), 3 + start_s), "exited")  # 11, which would not end
    assert {(b["proc"], b["signal"], b["reason"]) for _, b in gone} == {(11, None, body["reason"])}
    assert registry.procs == [12]
    assert registry.deadline() is None


def test_a_rank_that_is_heard_in_time_is_not_cut_off(registry):
    running(registry, 10)
    registry.feed(Pulsed(10, up=True), 0)
    registry.feed(Pulsed(10, up=False), 1)
    registry.feed(Tick(), 2)
    assert told(registry.feed(Pulsed(10, up=True), 11.9), "heard")
    assert registry.feed(Tick(), 100) == []


# --------------------------------------------------------------------------------- the zygote lost


def test_every_rank_is_reported_once_when_the_zygote_is_lost(registry):
    running(registry, 10, 11)
    registry.feed(Asked([12], OWNER), 0)
    effects = registry.feed(ZygoteLost("killed"), 1)
    assert [p for p, _ in told(effects, "failed")] == [CONTROLLER]
    assert {body["proc"] for _, body in told(effects, "exited")} == {12}
    seen = told(registry.feed(Ended(10, signal=9), 1.1), "exited")
    assert seen[0][1]["signal"] == 9
    late = told(registry.feed(Tick(), 3), "exited")
    assert {body["proc"] for _, body in late} == {11}
    assert "zygote" in late[0][1]["reason"]
    assert registry.procs == []


# ------------------------------------------------------------------------- every order of events


class Life(RuleBasedStateMachine):
    """Random histories of ranks; a model of who has to be told what."""

    def __init__(self):
        super().__init__()
        self.registry = RankStates(AGENT, CONTROLLER, Timing(start_s=30.0))
        self.now = 0.0
        self.next_proc = FIRST
        self.next_port = 1
        self.alive: set[int] = set()
        self.forked: set[int] = set()
        self.gone: set[int] = set()
        self.watchers = defaultdict(set)
        self.exits = Counter()
        self.silent = defaultdict(bool)
        self.stops: dict[int, set[int]] = {}
        self.answered: set[int] = set()

    def feed(self, event):
        for effect in self.registry.feed(event, self.now):
            match effect:
                case Tell(process, Exited(proc=proc) as exited):
                    self.exits[process, proc] += 1
                    if exited.unreachable_s is not None:
                        assert self.silent[CONTROLLER, proc]
                        self.forget(proc)
                    elif proc in self.alive:
                        assert "never became a rank" in exited.reason
                        self.forget(proc)
                case Tell(process, Silent(proc)):
                    assert proc not in self.gone
                    assert not self.silent[process, proc]
                    self.silent[process, proc] = True
                case Tell(process, Heard(proc)):
                    assert self.silent[process, proc] or process == STRANGER
                    self.silent[process, proc] = False
                case Answer(asker):
                    assert asker.port not in self.answered
                    self.answered.add(asker.port)
                case Kill(proc, _):
                    assert proc in self.forked & self.alive
            assert not (isinstance(effect, Tell) and effect.process in self.gone)

    def forget(self, proc):
        self.alive.discard(proc)
        self.gone.add(proc)
        for watched in self.watchers.values():
            watched.discard(proc)

    def some(self, data, of):
        return data.draw(st.lists(st.sampled_from(sorted(of)), unique=True, max_size=4))

    @rule(count=st.integers(1, 3), data=st.data())
    def ask(self, count, data):
        command = data.draw(st.sampled_from(["", "sleep 9"]))
        owner = data.draw(st.sampled_from([CONTROLLER, OWNER, *sorted(self.alive)]))
        procs = list(range(self.next_proc, self.next_proc + count))
        self.next_proc += count
        self.alive.update(procs)
        for proc in procs:
            self.watchers[proc] |= {CONTROLLER, owner}
        self.feed(Asked(procs, owner, dict.fromkeys(procs, command)))

    @precondition(lambda self: self.alive - self.forked)
    @rule(data=st.data())
    def fork(self, data):
        proc = data.draw(st.sampled_from(sorted(self.alive - self.forked)))
        self.forked.add(proc)
        self.feed(Forked(proc, proc * 100))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end(self, data):
        proc = data.draw(st.sampled_from(sorted(self.alive)))
        self.forget(proc)
        self.feed(Ended(proc, signal=9))
        self.feed(Ended(proc, code=0))  # said twice: by the zygote and by the agent itself

    @precondition(lambda self: self.forked & self.alive)
    @rule(data=st.data(), up=st.booleans())
    def pulse(self, data, up):
        self.feed(Pulsed(data.draw(st.sampled_from(sorted(self.forked & self.alive))), up))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def watch(self, data):
        procs = self.some(data, self.alive)
        for proc in procs:
            self.watchers[proc].add(STRANGER)
        self.feed(Watched(STRANGER, procs))

    @precondition(lambda self: self.alive | self.gone)
    @rule(data=st.data(), grace_s=st.sampled_from([0.0, 1.0, 10.0]))
    def stop(self, data, grace_s):
        procs = self.some(data, self.alive | self.gone)
        port, self.next_port = self.next_port, self.next_port + 1
        self.stops[port] = set(procs)
        self.feed(StopAsked(Asker(OWNER, port), procs, grace_s))

    @rule(seconds=st.sampled_from([0.1, 0.3, 5.0, 40.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.feed(Tick())

    @invariant()
    def every_watcher_was_told_of_every_exit_once(self):
        for proc in self.gone:
            for watcher in self.watchers[proc]:
                assert self.exits[watcher, proc] == 1
        assert not any(proc in self.alive for _, proc in self.exits)

    @invariant()
    def a_stop_is_answered_exactly_when_all_are_gone(self):
        for port, procs in self.stops.items():
            assert (port in self.answered) == (not procs & self.alive)

    @invariant()
    def nothing_is_overdue(self):
        deadline = self.registry.deadline()
        assert deadline is None or deadline > self.now


Life.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestLife = pytest.mark.slow(Life.TestCase)
