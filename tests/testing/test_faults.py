"""Faults that are injected into ranks, as users write it. What happens at each point: the sweep."""

import re

import pytest

from monarch_nb import ActorError, this_host
from monarch_nb.core import points
from monarch_nb.testing import faults
from tests import inside
from tests.source import ROOT
from tests.support import eventually, process_state
from tests.testing.actors import AsyncTrainer, Planned, Trainer

pytestmark = pytest.mark.fault


@pytest.fixture
def procs(spawn):
    return spawn(per_host={"gpus": 2})


def test_the_loop_of_a_user_is_harmed_at_the_step_that_is_meant(procs):
    trainers = procs.spawn("trainers", Trainer)
    error = faults.raise_(Planned("no more memory"))
    fault = faults.inject(trainers.slice(gpus=1), at="step", action=error, after=3)
    assert trainers.train.call(3).get(timeout=20).item(gpus=1) == 3
    with pytest.raises(ActorError, match="(?s)rank 1 of 2.*no more memory") as raised:
        trainers.train.call(3).get(timeout=20)
    assert isinstance(raised.value.__cause__, Planned)
    assert fault.fired() == 1
    assert set(trainers.train.call(3).get(timeout=20).values()) == {9, 6}


def test_an_async_actor_passes_points_too(procs):
    trainers = procs.spawn("trainers", AsyncTrainer)
    begin = faults.inject(procs, at="call.begin", action=faults.slow(0.01), times=None)
    end = faults.inject(procs, at="call.end", action=faults.slow(0.01), times=None)
    for _ in range(3):
        trainers.echo.call(1).get(timeout=20)
    assert (begin.remove(), end.remove(), begin.fired()) == (6, 6, 0)


def test_a_stopped_rank_goes_on_when_a_test_says_so(procs):
    trainers = procs.spawn("trainers", Trainer)
    pids = trainers.pid.call().get(timeout=20)
    faults.inject(procs.slice(gpus=1), at="step", action=faults.stop())
    training = trainers.train.call(1)
    eventually(lambda: process_state(pids.item(gpus=1)) == "T")
    assert not training.done()
    faults.resume(procs)
    assert set(training.get(timeout=20).values()) == {1}


@pytest.mark.parametrize(
    "at, action, words",
    [
        ("call.bgin", faults.kill(), "no point 'call.bgin'; there are rank.started, call.begin"),
        ("call.end", faults.cut(), "cut makes no sense there. What does: kill, stop and slow"),
        ("link.connect", faults.corrupt(), "What does: cut and slow"),
        ("agent.stop", faults.raise_(ValueError()), "raise_ makes no sense there"),
        ("link.send", faults.kill(), "kill makes no sense there"),
        ("link.send", faults.cut(), "there is no link to this host. Take ranks, or hosts"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(procs, at, action, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        faults.inject(procs, at=at, action=action)


def test_points_of_ranks_want_ranks():
    with pytest.raises(TypeError, match="take a mesh of processes, or a slice"):
        faults.inject(this_host(), at="step", action=faults.kill())


@pytest.mark.parametrize("wrong", [{"after": -1}, {"times": 0}])
def test_numbers_that_cannot_be_are_refused(procs, wrong):
    with pytest.raises(ValueError, match="not below 0, and at least 1"):
        faults.inject(procs, at="step", action=faults.kill(), **wrong)


@pytest.mark.parametrize("make", [faults.slow, faults.stop, faults.cut])
def test_seconds_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="is no number of seconds"):
        make(-1.0)


def test_a_rank_that_is_gone_is_named_and_the_others_are_left_alone(procs):
    trainers = procs.spawn("trainers", Trainer)
    faults.inject(procs.slice(gpus=1), at="step", action=faults.kill())
    trainers.slice(gpus=1).train.broadcast(1)
    eventually(lambda: inside.lost(procs) == [1])
    with pytest.raises(RuntimeError, match=r"rank 1 of \w+: .*SIGKILL"):
        faults.inject(procs, at="step", action=faults.kill())
    assert trainers.slice(gpus=0).train.call_one(1).get(timeout=20) == 1


def test_the_page_has_all_points_and_what_may_happen_there():
    rows = re.findall(
        r"^\| `([a-z]+(?:\.[a-z]+)?)` \| (.*) \| (.*) \|$",
        (ROOT / "docs/testing.md").read_text(),
        re.MULTILINE,
    )
    told = {at: (what, tuple(re.findall(r"`(\w+)`", actions))) for at, what, actions in rows}
    known = points.OF_RANKS | points.OF_AGENTS | points.OF_LINKS
    assert told == {at: (what, faults.actions_at(at)) for at, what in known.items()}
