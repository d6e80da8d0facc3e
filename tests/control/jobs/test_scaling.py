"""A mesh on more or fewer hosts than before, which are processes here: who stays keeps all."""

import os
import signal
import threading

import pytest

from monarch_nb import Actor, SupervisionError, current_rank, endpoint, shutdown_context
from monarch_nb.control.api import Control
from monarch_nb.control.jobs.status import Stage
from monarch_nb.job import LocalJob, ProcessJob
from tests import inside
from tests.support import descendants, eventually, is_running

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """The failures that nobody waits for; nothing of a test is left."""
    found = []
    monkeypatch.setattr("monarch_nb.unhandled_fault_hook", found.append, raising=False)
    yield found
    shutdown_context().get(20)
    eventually(lambda: not [each for each in descendants(os.getpid()) if is_running(each)])


@pytest.fixture
def new_job():
    made = []

    def new(*args, **kwargs):
        made.append(ProcessJob(*args, **kwargs))
        return made[-1]

    yield new
    for each in made:
        each.kill()


class Counter(Actor):
    """Counts its calls, and adds over all ranks."""

    def __init__(self) -> None:
        self._calls = 0

    @endpoint
    def count(self) -> int:
        self._calls += 1
        return self._calls

    @endpoint
    def place(self) -> dict[str, int]:
        return dict(current_rank())

    @endpoint
    def sum(self) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        mine = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return mine.item()


def counts(actors):
    return list(actors.count.call().get(60).values())


def test_more_hosts_add_ranks_and_the_first_keep_what_they_have(new_job, told):
    job = new_job({"trainers": 1})
    procs = job.state(cached_path=None).trainers.spawn_procs({"gpus": 2}, name="mesh0")
    counters = procs.spawn("counters", Counter)
    assert counts(counters) == [1, 1]
    assert set(counters.sum.call().get(60).values()) == {3.0}
    procs["x"] = 7
    before = inside.processes(procs)
    hosts = job.scale("trainers", 2)
    assert hosts.sizes == {"hosts": 2}
    more = procs.resize(hosts)
    assert more.initialized.get(60)
    assert more.sizes == {"hosts": 2, "gpus": 2}
    assert inside.processes(more)[:2] == before
    assert more.slice(hosts=0)["x"].values() == [7, 7]
    assert counts(counters) == [2, 2], "actors of the first ranks go on"
    assert counts(counters.heal()) == [3, 3], "and are healed as before"
    more["y"] = 1
    everywhere = more.spawn("everywhere", Counter)
    assert everywhere.place.call().get(60).values() == [
        {"hosts": host, "gpus": gpu} for host in range(2) for gpu in range(2)
    ]
    assert set(everywhere.sum.call().get(60).values()) == {10.0}, "over the network of both"
    with pytest.raises(RuntimeError, match="it has 2 hosts now; use the mesh that resize returned"):
        procs.spawn("late", Counter)
    assert job.status()[1:4] == (Stage.UP, 2, 2)
    assert told == []


def test_fewer_hosts_end_the_last_ranks_and_nothing_fails(new_job, told):
    job = new_job({"trainers": 3})
    hosts = job.state(cached_path=None).trainers
    procs = hosts.spawn_procs(name="mesh0")
    counters = procs.spawn("counters", Counter)
    assert counts(counters) == [1, 1, 1]
    pids = inside.pids(procs)
    with pytest.raises(RuntimeError, match=r"mesh0 has ranks on hosts that would be given back: "):
        job.scale("trainers", 2)
    fewer = procs.resize(hosts.slice(hosts=slice(2)))
    assert fewer.sizes == {"hosts": 2}
    eventually(lambda: not is_running(pids[2]))
    assert is_running(pids[0])
    assert is_running(pids[1])
    with pytest.raises(SupervisionError, match="the mesh was resized to 2 hosts"):
        counts(counters)
    assert counts(counters.slice(hosts=slice(2))) == [2, 2]
    smaller = counters.heal(shrink=True)
    assert counts(smaller) == [3, 3]
    assert job.scale("trainers", 2).sizes == {"hosts": 2}
    assert job.status()[1:4] == (Stage.UP, 2, 2)
    assert set(fewer.spawn("sums", Counter).sum.call().get(60).values()) == {3.0}
    assert told == []


def test_a_mesh_that_is_resized_while_others_look_at_it_goes_on(new_job):
    """Who finds it by its name drops its handle again, which was the first and the last one."""
    hosts = new_job({"trainers": 3}).state(cached_path=None).trainers
    procs = hosts.spawn_procs(name="mesh0")
    assert procs.initialized.get(60)
    control, is_over = Control(), threading.Event()

    def look():
        while not is_over.wait(0.001):
            control.find("mesh0")

    looking = threading.Thread(target=look)
    looking.start()
    for count in (2, 1):
        procs = procs.resize(hosts.slice(hosts=slice(count)))
    is_over.set()
    looking.join()
    assert counts(procs.spawn("counters", Counter)) == [1]


@pytest.mark.fault
def test_what_was_resized_can_be_healed_and_resized_again(new_job):
    job = new_job({"trainers": 1})
    procs = job.state(cached_path=None).trainers.spawn_procs(name="mesh0")
    counters = procs.spawn("counters", Counter)
    assert counts(counters) == [1]
    procs = procs.resize(job.scale("trainers", 3))
    assert procs.initialized.get(60)
    third = procs.spawn("all", Counter)
    assert counts(third) == [1, 1, 1]
    os.kill(inside.pids(procs)[0], signal.SIGKILL)
    eventually(lambda: inside.lost(procs) == [0])
    with pytest.raises(SupervisionError, match="rank 0 of mesh0 is lost. Bring them back before"):
        procs.resize(job.state(cached_path=None).trainers.slice(hosts=slice(2)))
    procs.heal()
    assert counts(third) == [1, 2, 2]
    assert counts(counters) == [1]
    procs = procs.resize(job.state(cached_path=None).trainers.slice(hosts=slice(2)))
    job.scale("trainers", 2)
    os.kill(inside.pids(procs)[1], signal.SIGKILL)
    eventually(lambda: inside.lost(procs) == [1])
    procs.heal()
    assert counts(third.slice(hosts=slice(2))) == [2, 1]
    procs = procs.resize(job.scale("trainers", 3))
    assert counts(procs.spawn("again", Counter)) == [1, 1, 1]


def test_what_cannot_be_is_refused(new_job):
    job = new_job({"trainers": 2})
    with pytest.raises(ValueError, match=r"'trainers' is no mesh .* job.state\(\) gets its hosts"):
        job.scale("trainers", 3)
    hosts = job.state(cached_path=None).trainers
    with pytest.raises(ValueError, match="hosts=0: a mesh has at least one host"):
        job.scale("trainers", 0)
    with pytest.raises(RuntimeError, match="a LocalJob has as many hosts as it has"):
        LocalJob().scale("hosts", 2)
    procs = hosts.spawn_procs({"gpus": 1})
    with pytest.raises(RuntimeError, match="a slice of a ProcMesh cannot be resized"):
        procs.slice(hosts=0).resize(hosts)
    with pytest.raises(ValueError, match="is on other hosts than the first of"):
        procs.resize(hosts.slice(hosts=slice(1, 2)))
    with pytest.raises(ValueError, match="has not the one axis"):
        procs.resize(hosts.slice(hosts=0))
