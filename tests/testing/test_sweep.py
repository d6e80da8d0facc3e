"""Every point of the runtime, and everything that can happen there.

What is promised: the call, cell or spawn ends, with what happened to that rank or as if nothing
had; the other ranks go on answering; nothing is left.
"""

import contextlib
from collections.abc import Callable

import pytest

from monarch_nb import ProcMesh, RankExited, attach_to_workers, this_host
from monarch_nb.control.client import client
from monarch_nb.core import points
from monarch_nb.testing import faults
from tests import support
from tests.host.support import wait
from tests.net.conftest import Workers
from tests.support import eventually
from tests.testing.actors import Trainer
from tests.testing.deeds import ACTIONS, ENDS, HARMED, LIMIT_S, OTHERS, cases, harm, how

pytestmark = [pytest.mark.slow, pytest.mark.fault]

ELSEWHERE = ("rank.started", "collective.wait")  # the latter: test_collectives.py
RANK_POINTS = [*(at for at in points.OF_RANKS if at not in ELSEWHERE), "step"]
NIGHTLY = (
    *("agent.stop-kill", "agent.status-kill"),  # a host starts again for each
    *(f"{at}-slow" for at in RANK_POINTS),  # as a stop that is shorter
)


@pytest.mark.parametrize("at, action", cases(RANK_POINTS, NIGHTLY))
def test_a_rank_is_harmed(spawn, at, action):
    harm(spawn, at, action)


@pytest.mark.parametrize("at, action", cases(["rank.started"]))
def test_a_rank_is_harmed_while_it_starts(spawn, at, action):
    fault = faults.inject(this_host(), at=at, action=ACTIONS[action], after=HARMED)
    procs = spawn(per_host={"gpus": 3})
    assert how(procs.initialized.exception(timeout=LIMIT_S)) == ENDS.get(action, "ok")
    assert fault.remove() == 1
    others = [procs.slice(gpus=rank) for rank in OTHERS]
    found = [each.spawn("trainers", Trainer).echo.call_one(3) for each in others]
    assert [each.get(timeout=LIMIT_S) for each in found] == [3, 3]


# ------------------------------------------------------------------------------------------ agents


def spawn_more(_: ProcMesh) -> None:
    more = this_host().spawn_procs(per_host={"gpus": 2})
    more.initialized.get(timeout=LIMIT_S)
    more.stop().get(timeout=LIMIT_S)


def look(procs: ProcMesh) -> None:
    client().snapshot()  # from then on it tells what changes
    procs.spawn("more", Trainer).echo.call(1).get(timeout=LIMIT_S)


AGENT_DEEDS: dict[str, Callable[[ProcMesh], object]] = {
    "agent.spawn": spawn_more,
    "agent.stop": lambda procs: procs.stop().get(timeout=LIMIT_S),
    "agent.status": look,
}


@pytest.mark.parametrize("at, action", cases(points.OF_AGENTS, NIGHTLY))
def test_an_agent_is_harmed(spawn, at, action):
    procs = spawn(per_host={"gpus": 3})
    trainers = procs.spawn("trainers", Trainer)
    pids = list(trainers.pid.call().get(timeout=LIMIT_S).values())
    agent = client().proc.agent
    fault = faults.inject(this_host(), at=at, action=ACTIONS[action])
    if action == "kill":
        with contextlib.suppress(RankExited):  # a stop is done, a start has failed
            AGENT_DEEDS[at](procs)
        eventually(lambda: agent in client().proc.dead)
        eventually(lambda: not any(map(support.is_running, pids)))
        procs = spawn(per_host={"gpus": 1})  # of another agent
        trainers = procs.spawn("trainers", Trainer)
    else:
        AGENT_DEEDS[at](procs)
        eventually(lambda: fault.fired() == 1)
        fault.remove()
    if at != "agent.stop" or action == "kill":
        assert set(trainers.echo.call(1).get(timeout=LIMIT_S).values()) == {1}


# ------------------------------------------------------------------------------------------- links


@pytest.fixture(scope="module")
def on_two_hosts(mesh_runtime, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_HOME", str(tmp_path_factory.mktemp("keys")))
        workers = Workers()
        try:
            addresses, _ = workers(2)
            procs = attach_to_workers(workers=addresses).spawn_procs(per_host={"gpus": 2})
            procs.initialized.get(timeout=40)
            yield procs.spawn("trainers", Trainer)
        finally:
            workers.end()


@pytest.mark.parametrize("at, action", cases(points.OF_LINKS))
def test_a_link_is_harmed(on_two_hosts, at, action):
    assert set(on_two_hosts.echo.call(0).get(timeout=LIMIT_S).values()) == {0}
    one = on_two_hosts.slice(hosts=1)
    fault = faults.inject(one, at=at, action=ACTIONS[action])
    breaking = faults.inject(one, at="link.send", action=faults.cut())
    values = [on_two_hosts.train.call(1) for _ in range(20)]
    steps = [set(each.get(timeout=LIMIT_S).values()) for each in values]
    assert [len(each) for each in steps] == [1] * 20
    assert fault.remove() == 1
    assert breaking.remove() == 1


def test_a_link_on_which_nothing_arrives_does_not_dial_all_the_time(on_two_hosts):
    one = on_two_hosts.slice(hosts=1)
    fault = faults.inject(one, at="link.send", action=faults.corrupt(), times=None)
    call = one.echo.call(1)
    wait(1.0)
    assert not call.done()
    assert 1 < fault.remove() < 60  # records; each connection ends with its first ones
    assert set(call.get(timeout=LIMIT_S).values()) == {1}
