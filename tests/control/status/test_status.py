"""The snapshot of real ranks: what they do, at once, and the same object while nothing changes."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import monarch_nb
from monarch_nb import Actor, ProcMesh, concurrent_endpoint, endpoint, this_host
from monarch_nb.control.client import client
from monarch_nb.control.status import sampling
from monarch_nb.control.status.snapshots import MeshStatus, RankStatus
from tests import inside
from tests.support import eventually, until_exists


@pytest.fixture(scope="module")
def mesh_runtime(own_client: None) -> None:
    """One test shuts its host down."""


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def wait_for(self, path):
        until_exists(path)

    @endpoint
    def fail(self):
        raise ValueError("no")

    @endpoint
    def compute(self, busy_s, rest_s, times):
        for _ in range(times):
            end = time.perf_counter() + busy_s
            while time.perf_counter() < end:
                pass
            time.sleep(rest_s)


class Waiter(Actor):
    """On a loop of its own."""

    def __init__(self):
        self.go = asyncio.Event()

    @endpoint
    async def fail(self):
        raise ValueError("no")

    @concurrent_endpoint
    async def beside(self):
        await self.go.wait()

    @endpoint
    async def let_go(self):
        self.go.set()


class Collective(Actor):
    """Meets the others in a process group."""

    @endpoint
    def is_changed(self):
        import torch.distributed as dist

        return hasattr(dist.Work.wait, "__wrapped__")

    @endpoint
    def meet(self, late, path):
        import torch
        import torch.distributed as dist

        if int(os.environ["RANK"]) == late:
            until_exists(f"{path}-init")
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        if int(os.environ["RANK"]) == late:
            until_exists(f"{path}-reduce")
        dist.all_reduce(torch.ones(1))
        until_exists(f"{path}-end")
        dist.destroy_process_group()


@pytest.fixture
def mesh(mesh_runtime, request) -> Iterator[Callable[..., ProcMesh]]:
    made: list[ProcMesh] = []

    def up(ranks: int) -> ProcMesh:
        made.append(this_host().spawn_procs(per_host={"gpus": ranks}, name=request.node.name))
        made[-1].initialized.get(30)
        return made[-1]

    monarch_nb.unhandled_fault_hook = lambda _: None
    yield up
    del monarch_nb.unhandled_fault_hook
    for each in made:
        each.stop().get(20)


@pytest.fixture
def watch(mesh_runtime):
    watch = client().status.watch(0.1)
    yield watch
    watch.close()


def seen(procs: ProcMesh) -> MeshStatus:
    [found] = [each for each in client().snapshot().meshes if each.name == procs.name]
    return found


def ranks(procs: ProcMesh) -> tuple[RankStatus, ...]:
    return seen(procs).ranks


def flag(tmp_path, name: str = "go") -> str:
    return str(tmp_path / name)


def test_a_snapshot_says_what_each_rank_does_and_has_done(mesh, tmp_path):
    procs = mesh(2)
    workers = procs.spawn("workers", Worker)
    pids = list(workers.pid.call().get(20).values())
    with pytest.raises(monarch_nb.ActorError):
        workers.slice(gpus=1).fail.call_one().get(20)
    running = workers.slice(gpus=0).wait_for.call_one(flag(tmp_path))
    waiting = [workers.slice(gpus=0).pid.call_one() for _ in range(3)]

    def are_there() -> tuple[RankStatus, ...] | None:
        first, second = found = ranks(procs)
        is_measured = first.usage.rss_bytes > 0  # once a second
        return found if first.queue == 3 and second.failed == 1 and is_measured else None

    first, second = eventually(are_there, 10.0)
    assert (first.state, first.what, first.calls, first.failed) == ("busy", "wait_for", 1, 0)
    assert (second.state, second.what, second.calls) == ("failed", "", 2)
    assert [first.pid, second.pid] == pids
    assert [first.coords, second.coords] == [{"gpus": 0}, {"gpus": 1}]
    assert 0 < first.age_s(time.monotonic()) < 20
    assert first.usage.rss_bytes > 1 << 20
    assert first.usage.gpu_percent is None
    (tmp_path / "go").touch()
    running.get(10)
    assert [each.get(10) for each in waiting] == [pids[0]] * 3
    done = eventually(lambda: (found := ranks(procs)[0]).calls == 5 and found, 10.0)
    assert (done.state, done.queue, done.failed) == ("idle", 0, 0)
    assert done.beat > first.beat
    [actors] = seen(procs).actors
    assert (actors.name, actors.cls, actors.size, actors.ended) == ("workers", "Worker", 2, None)


def test_who_has_an_answer_sees_a_rank_that_rests(mesh, watch):
    """Boards are sampled ten times a second, and calls are faster."""
    procs = mesh(1)
    workers = procs.spawn("workers", Worker)
    for calls in range(1, 51):
        workers.pid.call_one().get(20)
        [found] = ranks(procs)
        assert (found.state, found.calls) == ("idle", calls)


def test_calls_of_actors_with_a_loop_are_counted_and_seen(mesh):
    procs = mesh(1)
    waiter = procs.spawn("waiter", Waiter)
    with pytest.raises(monarch_nb.ActorError):
        waiter.fail.call_one().get(20)
    beside = [waiter.beside.call_one() for _ in range(2)]
    [rank] = eventually(lambda: (found := ranks(procs))[0].what == "beside" and found, 10.0)
    assert (rank.state, rank.calls, rank.failed) == ("busy", 1, 1)
    waiter.let_go.call_one().get(10)
    for each in beside:
        each.get(10)
    [rank] = eventually(lambda: (found := ranks(procs))[0].calls == 4 and found, 10.0)
    assert (rank.state, rank.failed) == ("idle", 1)


def test_an_interrupt_is_no_failure(mesh, tmp_path):
    procs = mesh(1)
    workers = procs.spawn("workers", Worker)
    call = workers.wait_for.call_one(flag(tmp_path))
    eventually(lambda: ranks(procs)[0].what == "wait_for", 10.0)
    call.cancel()
    [rank] = eventually(lambda: (found := ranks(procs))[0].calls == 1 and found, 10.0)
    assert (rank.state, rank.failed) == ("idle", 0)


def test_a_rank_that_waits_for_others_says_where(mesh, tmp_path):
    procs = mesh(2)
    actors = procs.spawn("collective", Collective)
    assert set(actors.is_changed.call().get(20).values()) == {False}
    call = actors.meet.call(1, str(tmp_path / "at"))
    late = [("collective", "init_process_group"), ("busy", "meet")]
    eventually(lambda: [(each.state, each.what) for each in ranks(procs)] == late, 30.0)
    (tmp_path / "at-init").touch()
    eventually(lambda: ranks(procs)[0].what == "all_reduce", 30.0)
    assert ranks(procs)[0].state == "collective"
    (tmp_path / "at-reduce").touch()
    eventually(lambda: [each.what for each in ranks(procs)] == ["meet"] * 2, 30.0)
    assert [each.state for each in ranks(procs)] == ["busy"] * 2
    (tmp_path / "at-end").touch()
    call.get(20)
    assert set(actors.is_changed.call().get(20).values()) == {True}


def test_what_has_not_changed_is_the_same_object(mesh, tmp_path, watch):
    procs, other = mesh(4), this_host().spawn_procs(per_host={"gpus": 2}, name="other")
    other.initialized.get(20)
    workers = procs.spawn("workers", Worker)
    workers.pid.call().get(20)
    eventually(lambda: {each.calls for each in ranks(procs)} == {1}, 10.0)  # all have been sampled
    settled = [None]

    def is_still() -> bool:
        before, settled[0] = settled[0], client().snapshot()
        return before is not None and all(
            one is two for one, two in zip(before.meshes, settled[0].meshes, strict=True)
        )

    eventually(is_still, 10.0)
    before = settled[0]
    call = workers.slice(gpus=2).wait_for.call_one(flag(tmp_path))
    after = eventually(
        lambda: (now := client().snapshot()) and _of(now, procs).ranks[2].state == "busy" and now
    )
    assert after.hosts is before.hosts
    pairs = list(zip(_of(before, procs).ranks, _of(after, procs).ranks, strict=True))
    assert all(one is two or one != two for one, two in pairs)
    changed = [one.rank for one, two in pairs if one.beat != two.beat]
    assert changed == [2]
    assert _of(before, procs).ranks[2].state == "idle"
    (tmp_path / "go").touch()
    call.get(10)
    other.stop().get(20)
    assert [each.name for each in client().snapshot().meshes] == [procs.name]


def _of(snapshot, procs):
    return next(each for each in snapshot.meshes if each.name == procs.name)


@pytest.mark.slow
@pytest.mark.fault
def test_a_dead_rank_is_shown_at_once_and_its_row_goes_on_when_healed(mesh, watch):
    procs = mesh(2)
    workers = procs.spawn("workers", Worker)
    pids = list(workers.pid.call().get(20).values())
    timeline = client().status.timeline(procs.name)
    os.kill(pids[1], signal.SIGKILL)
    dead = client().proc.dead
    process = inside.processes(procs)[1]
    eventually(lambda: process in dead, 10.0)
    [first, second] = ranks(procs)
    assert (first.state, second.state) == ("idle", "exited")
    assert "SIGKILL" in second.detail
    eventually(lambda: ranks(procs)[1].age_s(time.monotonic()) > 0, 5.0)
    eventually(lambda: timeline.strips()[1].endswith("x"), 10.0)
    procs.heal()
    assert workers.pid.call().get(20)
    eventually(lambda: timeline.strips()[1].endswith("0"), 10.0)
    assert client().status.timeline(procs.name) is timeline
    strip = timeline.strips()[1]
    assert re.search(r"x+[.s]*0$", strip)
    assert ranks(procs)[1].pid not in pids


@pytest.mark.slow
def test_the_timeline_tells_the_share_of_each_second_that_was_busy(mesh, watch):
    procs = mesh(2)
    workers = procs.spawn("workers", Worker)
    workers.pid.call().get(20)
    desk, timeline = client().status, client().status.timeline(procs.name)
    began = timeline.seconds
    eventually(lambda: timeline.seconds >= began + 2, 10.0)
    workers.slice(gpus=1).compute.call_one(0.01, 0.01, 150).get(20)
    end = timeline.seconds + 1
    eventually(lambda: timeline.seconds > end, 10.0)
    quiet, busy = desk.timeline(procs.name).strips()
    assert set(quiet[-3:]) == {"0"}
    assert "9" in busy  # a call is busy, whether it computes or sleeps
    assert timeline.letters(timeline.seconds - 1) == quiet[-1] + busy[-1]
    assert desk.timeline("no such mesh").strips() == []


def test_agents_sample_only_while_somebody_looks(mesh, monkeypatch):
    procs = mesh(1)
    desk = client().status
    agent = client().proc.agent

    def asked():
        return dict(desk._asked)

    eventually(lambda: not asked(), 10.0)
    slow = desk.watch(30.0)
    assert asked() == {agent: 1.0}
    fast = desk.watch(0.01)
    assert asked() == {agent: 0.1}
    eventually(lambda: ranks(procs)[0].beat > 0, 10.0)
    fast.close()
    assert asked() == {agent: 1.0}
    slow.close()
    slow.close()
    assert asked() == {}
    monkeypatch.setattr(sampling, "KEEP_LOOKING_S", 0.01)
    assert ranks(procs)[0].state == "idle"
    assert asked() == {agent: 0.1}
    eventually(lambda: not asked(), 10.0)
    eventually(lambda: "monarch-status" not in {each.name for each in threading.enumerate()}, 10.0)


def test_many_hosts_are_sampled_less_often():
    assert [sampling.affordable_s(0.1, hosts) for hosts in (1, 100, 1000)] == [0.1, 0.1, 1.0]
    assert sampling.affordable_s(1.0, 32) == 1.0


@pytest.mark.slow
def test_a_mesh_that_is_gone_with_its_host_is_not_shown_for_ever(mesh_runtime, watch):
    procs = this_host().spawn_procs(per_host={"gpus": 2}, name="gone")
    procs.initialized.get(30)
    eventually(lambda: [each.state for each in ranks(procs)] == ["idle"] * 2, 10.0)
    this_host().shutdown().get(20)
    eventually(lambda: "gone" not in [each.name for each in client().snapshot().meshes], 10.0)
    again = this_host().spawn_procs(per_host={"gpus": 1}, name="again")
    again.initialized.get(30)
    assert [each.ended for each in client().snapshot().hosts] == [None]
    eventually(lambda: ranks(again)[0].beat > 0, 10.0)
    again.stop().get(20)


@pytest.mark.slow
def test_several_threads_may_take_snapshots(mesh, watch, tmp_path):
    procs = mesh(3)
    workers = procs.spawn("workers", Worker)
    workers.pid.call().get(20)
    errors: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                assert len(ranks(procs)) == 3
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            workers.pid.call().get(20)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert errors == []
    eventually(lambda: [each.state for each in ranks(procs)] == ["idle"] * 3, 10.0)
