"""Workers on machines, attached by this process, and what a user sees where that fails."""

import subprocess
import sys
import time

import pytest

from monarch_nb import RankUnreachable
from tests.clusters.actors import Where, names
from tests.clusters.offer import PORT
from tests.support import eventually

pytestmark = pytest.mark.slow
OFFER = [sys.executable, "-m", "tests.clusters.offer"]


def offer(machines):
    for each in machines:
        each.popen([*OFFER, f"tcp://{each.address}:{PORT}"])


def test_two_machines_are_one_mesh_and_are_left_empty(machines, attach):
    both = machines(2)
    offer(both)
    hosts = attach(both)
    actors = hosts.spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    assert names(actors) == ["node1", "node1", "node2", "node2"]
    assert actors.length.call(b"x" * 3_000_000).get(30).values() == [3_000_000] * 4
    first, last = (actors.slice(hosts=each, gpus=0) for each in range(2))
    assert first.machine_of.call_one(last).get(20) == "node2"
    hosts.shutdown().get(20)
    for each in both:
        each.assert_idle()
        made = each.run(["find", "/dev/shm", str(each.tmpdir), "-mindepth", "1"])
        assert made == f"{each.tmpdir}/home\n"


@pytest.mark.fault
@pytest.mark.parametrize("end", ["close", "lose_power"], ids=["it is ended", "it loses power"])
def test_a_machine_that_is_gone_is_told_once_and_the_other_goes_on(
    machines, attach, monkeypatch, end
):
    told = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", told.append, raising=False)
    monkeypatch.setenv("MONARCH_NB_OUTAGE_S", "3")
    both = machines(2)
    offer(both)
    actors = attach(both).spawn_procs().spawn("where", Where)
    assert names(actors) == ["node1", "node2"]
    here, there = (actors.slice(hosts=each) for each in range(2))
    getattr(both[1], end)()
    eventually(lambda: told, 10, "the end of the host is told")
    with pytest.raises(RankUnreachable) as lost:
        names(there)
    assert set(lost.value.ranks) == {1}
    assert names(here) == ["node1"]
    assert [each.crashed_ranks for each in told] == [[1]]


@pytest.mark.fault
def test_an_outage_of_3_s_loses_and_doubles_nothing(machines, attach):
    both = machines(2)
    offer(both)
    actors = attach(both).spawn_procs(per_host={"gpus": 2}).spawn("where", Where)
    names(actors)
    asks, idle = (actors.slice(hosts=0, gpus=each) for each in range(2))
    asked, counts = (actors.slice(hosts=1, gpus=each) for each in range(2))
    assert asks.machine_of.call_one(asked).get(20) == "node2"
    before = [counts.count.call_one() for _ in range(100)]
    with both[1].cut_off():
        cut = time.monotonic()
        during = [counts.count.call_one() for _ in range(100)]
        between = asks.machine_of.call_one(asked)  # over the link of the two machines
        assert names(idle) == ["node1"]
        with pytest.raises(TimeoutError):
            during[-1].get(cut + 3.0 - time.monotonic())
    back = time.monotonic()
    assert [each.get(20) for each in before + during] == list(range(1, 201))
    assert between.get(20) == "node2"
    assert time.monotonic() - back < 5.0


@pytest.mark.parametrize(
    "kind", [{"networks": ("storage", "lan")}, {"debian": True}], ids=["storage", "127.0.1.1"]
)
def test_a_worker_on_the_wrong_interface_today(machines, attach, monkeypatch, kind):
    """It listens where its own name leads, and is not reached: the user is told the address."""
    monkeypatch.setenv("MONARCH_NB_ATTACH_S", "2")
    [odd] = machines(**kind)
    worker = odd.popen(OFFER, stderr=subprocess.PIPE, text=True)
    name = "127.0.1.1" if "debian" in kind else odd.addresses["storage"]
    for address in (name, odd.address):
        hosts = attach([odd], [f"tcp://{address}:{PORT}"])
        with pytest.raises(RuntimeError) as error:
            hosts.initialized.get(20)
        assert f"attach failed: config push failed during attach: tcp://{address}" in str(
            error.value
        )
    worker.terminate()
    assert worker.communicate(timeout=20)[1] == "", "the worker itself says nothing"
