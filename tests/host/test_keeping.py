"""An agent whose ranks are kept: its owner is killed, it goes on alone, another one comes."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import DRIVEN, Adopt, Keep
from monarch_nb.host import rundir
from monarch_nb.host.agent import events
from monarch_nb.host.agent.keeping import Keeping, Then
from monarch_nb.host.agent.rank_states import RankStates
from monarch_nb.net.links import Links
from tests.host.owner import KEY
from tests.host.support import AGENT
from tests.host.test_rank_states import CONTROLLER, OWNER, running, told
from tests.support import eventually, is_running

NEXT = 77


# ------------------------------------------------------------------------------------- decisions


def test_who_shows_the_key_may_take_over_when_nobody_drives():
    keeping = Keeping(is_elsewhere=False)
    keeping.keep(Keep([1], 60.0, KEY))
    assert isinstance(keeping.refusal(Adopt("00" * 32, 5, "me"), 3), Refused)
    driven = keeping.refusal(Adopt(KEY, 5, "me"), 3)
    assert (driven.kind, driven.error) == (DRIVEN, "process 3 drives these ranks")
    assert keeping.refusal(Adopt(KEY, 5, "me", fence=True), 3) is None
    keeping.begin(100.0)
    assert keeping.refusal(Adopt(KEY, 5, "me"), None) is None
    assert keeping.due() == 160.0
    assert keeping.end(7, 8, 130.0) == 30.0
    assert keeping.due() is None


def test_where_nothing_is_kept_no_key_fits():
    keeping = Keeping(is_elsewhere=False)
    assert isinstance(keeping.refusal(Adopt("", 5, "me", fence=True), 3), Refused)


def test_who_drove_the_ranks_orders_nothing_any_more():
    keeping = Keeping(is_elsewhere=False)
    assert keeping.fenced(7) is None
    keeping.end(7, 8, 0.0)
    assert isinstance(keeping.fenced(7), Refused)
    assert keeping.fenced(8) is None


@pytest.mark.parametrize(
    "is_elsewhere, living, ending, then",
    [
        (False, [1], False, Then.GO_ON_ALONE),
        (False, [2], False, Then.END),  # none that is kept
        (False, [1], True, Then.END),
        (True, [1], False, Then.END),  # nobody could find them any more
    ],
)
def test_the_end_of_the_owner_ends_all_but_what_is_kept(is_elsewhere, living, ending, then):
    keeping = Keeping(is_elsewhere=is_elsewhere)
    keeping.keep(Keep([1], 60.0, KEY))
    assert keeping.owner_ended(living, ending=ending) is then


def test_who_is_alone_goes_on_until_the_time_is_over():
    keeping = Keeping(is_elsewhere=True)
    keeping.keep(Keep([1], 60.0, KEY))
    assert keeping.controller_lost(ending=True) is Then.NOTHING
    assert keeping.controller_lost(ending=False) is Then.GO_ON_ALONE
    keeping.begin(100.0)
    assert keeping.controller_lost(ending=False) is Then.NOTHING
    assert not keeping.is_over(159.9)
    assert keeping.is_over(160.0)


def test_kept_ranks_and_theirs_go_on_and_others_are_asked_to_end():
    states = RankStates(AGENT, CONTROLLER)
    running(states, 10, 11, owner=CONTROLLER)
    running(states, 20, owner=10)  # spawned by a rank that is kept
    running(states, 21, owner=20)
    effects = states.feed(events.ControllerLost({10}), 1)
    gone = {"verb": "controller_gone", "controller": CONTROLLER}
    assert told(effects, "controller_gone") == [(process, gone) for process in (10, 20, 21)]
    assert [process for process, _ in told(effects, "exit")] == [11]
    assert states.is_gone(CONTROLLER)
    exits = told(states.feed(events.Ended(10, signal=9), 2), "exited")
    assert CONTROLLER not in [process for process, _ in exits]


def test_the_next_controller_owns_what_the_first_has_spawned():
    states = RankStates(AGENT, CONTROLLER)
    running(states, 10, owner=CONTROLLER)
    running(states, 11, owner=OWNER)
    states.feed(events.ControllerLost({10, 11}), 1)
    states.feed(events.Adopted(NEXT), 2)
    assert not states.is_gone(CONTROLLER)
    exits = told(states.feed(events.Ended(10, signal=9), 3), "exited")
    assert [process for process, _ in exits] == [NEXT]
    exits = told(states.feed(events.Ended(11, signal=9), 3), "exited")
    assert [process for process, _ in exits] == [OWNER, NEXT]


# ---------------------------------------------------------------------------------- real processes


class NextOwner:
    """A controller that comes later, in this process."""

    def __init__(self, run_dir: Path, number: int = NEXT) -> None:
        self.run_dir = rundir.hold(run_dir)
        self.lifeline = rundir.new_lifeline(run_dir, number)
        self.answers: dict[int, dict] = {}
        self.told: list[dict] = []
        self.number = number
        self._ports = itertools.count(1000)
        self.links = Links(run_dir, number, self._deliver)
        self.links.start()

    def _deliver(self, message: frames.Message) -> None:
        body = json.loads(bytes(message.payload))
        if message.port:
            self.answers[message.port] = body
        else:
            self.told.append(body)

    def ask(self, verb: str, **fields: object) -> dict:
        port = next(self._ports)
        header = frames.HEADER.pack(frames.CONTROL, 0, 0, 0, 0, 0, self.number, port)
        body = json.dumps({"verb": verb, **fields}).encode()
        self.links.outbox(AGENT).send_frames([header + body])
        return eventually(lambda: self.answers.get(port), 10, f"an answer to {verb}")

    def adopt(self, key: str = KEY, **fields: object) -> dict:
        return self.ask("adopt", key=key, owner_pid=os.getpid(), who="a test", **fields)

    def end(self) -> None:
        """Be gone, as far as an agent can see, though this process lives."""
        self.links.close()
        os.close(self.lifeline)
        self.run_dir.leave()


@pytest.fixture
def owner():
    """A process that keeps ranks for a second after its end, and what it has started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.host.owner", "2", "--keep", "2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    facts = json.loads(process.stdout.readline())
    yield process, facts
    process.kill()
    process.wait()
    process.stdout.close()
    pids = [facts["agent"], facts["zygote"], *facts["ranks"]]
    eventually(lambda: not any(map(is_running, pids)), 10, "all to end")


def test_alone_they_go_on_for_the_time_and_leave_nothing(owner):
    process, facts = owner
    process.kill()
    process.wait()
    killed = time.monotonic()
    rundir.sweep_all()
    pids = [facts["agent"], facts["zygote"], *facts["ranks"]]
    while time.monotonic() < killed + 1:
        assert all(map(is_running, pids))
        assert Path(facts["run_dir"]).is_dir(), "no other process sweeps it away"
    eventually(lambda: not any(map(is_running, pids)), 10, "all to end")
    assert time.monotonic() - killed > 1.9
    eventually(lambda: not Path(facts["run_dir"]).exists())


def test_another_owner_comes_and_its_end_is_noticed(owner):
    process, facts = owner
    process.kill()
    process.wait()
    after = NextOwner(Path(facts["run_dir"]))
    assert "key" in after.adopt("00" * 32)["error"]
    adopted = after.adopt()
    assert adopted["pids"] == facts["ranks"]
    assert adopted["alone_s"] > 0
    after.end()  # only the lifeline tells of it
    eventually(lambda: not any(map(is_running, facts["ranks"])), 10, "the ranks to end")


def test_one_that_lives_is_fenced(owner):
    _, facts = owner
    after = NextOwner(Path(facts["run_dir"]))
    refused = after.adopt()
    assert refused["kind"] == DRIVEN
    adopted = after.adopt(fence=True)
    assert adopted.get("alone_s") is None
    after.end()


@pytest.mark.parametrize("doomed", ["agent", "zygote"])
def test_the_end_of_agent_or_zygote_ends_the_ranks(owner, doomed):
    process, facts = owner
    process.kill()
    process.wait()
    os.kill(facts[doomed], signal.SIGKILL)
    eventually(lambda: not any(map(is_running, facts["ranks"])), 10, "the ranks to end")
    if doomed == "agent":  # nobody is left to remove the run dir: the next of this user does
        assert Path(facts["run_dir"]).is_dir()
        rundir.sweep_all()
        assert not Path(facts["run_dir"]).exists()


def test_sigterm_ends_all(owner):
    process, facts = owner
    process.kill()
    process.wait()
    os.kill(facts["agent"], signal.SIGTERM)
    eventually(lambda: not Path(facts["run_dir"]).exists(), 10)
