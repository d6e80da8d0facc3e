"""`torch.distributed` on a mesh of two hosts: all as on one. Two worker processes of this machine,
each with a run dir and an agent of its own."""

import os
import re
import signal
import time

import pytest

import monarch_nb
from monarch_nb import Actor, attach_to_workers, endpoint
from monarch_nb.control import cells
from monarch_nb.control.cells import CellRun
from monarch_nb.control.client import client
from monarch_nb.control.hangs.collectives import Xray
from monarch_nb.core.wire.messages.cells import Script
from monarch_nb.core.wire.messages.groups import GetStandings
from monarch_nb.process.futures import ask_all
from monarch_nb.services.stores import Stores
from monarch_nb.spmd import SPMDActor
from tests import inside
from tests.net.conftest import Workers
from tests.support import eventually

WITHIN_S = 40.0
HEAD = "import torch, time\nimport torch.distributed as dist\nx = torch.ones(1) * rank\n"


class Trainer(Actor):
    @endpoint
    def total(self, group, procs):
        import torch
        import torch.distributed as dist

        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        dist.all_reduce(x, group=procs.group("gpus"))
        return x.item()

    @endpoint
    def init(self):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()


class Hosts:
    """A mesh of two hosts with two ranks each, and what is asked of it."""

    def __init__(self, hosts):
        self.procs = hosts.spawn_procs(per_host={"gpus": 2})
        self.procs.initialized.get(60)
        self.xray = Xray(client().proc, client().supervision)

    def start(self, code: str, host: int | None = None) -> CellRun:
        """Run a cell on all ranks, or on those of one host."""
        part = self.procs if host is None else self.procs.slice(hosts=host)
        return cells.run_cell(part, HEAD + code, filename="<cell>", first_line=1, tag=0)

    def ok(self, code: str, host: int | None = None) -> None:
        run = self.start(code, host)
        assert run.wait(WITHIN_S), run
        assert not errors(run)

    def waits(self, what: str, *ranks: int) -> None:
        """Return when these ranks wait for others in `what`."""

        def seen() -> bool:
            return all(what in each.what for each in self.xray.places(self.procs, ranks).values())

        eventually(seen, WITHIN_S, f"{what} on {ranks}")

    @property
    def pids(self) -> list[int]:
        return [pid for _, pid in sorted(inside.pids(self.procs).items())]


def errors(run: CellRun) -> dict[int, str]:
    return {rank: str(each.error) for rank, each in run.outcomes.items() if each.status != "ok"}


@pytest.fixture(scope="module")
def hosts(mesh_runtime, tmp_path_factory):
    """Two hosts that all tests use: a host loads PyTorch for seconds."""
    workers = Workers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_HOME", str(tmp_path_factory.mktemp("home") / "keys"))
        addresses, _ = workers(2)
        found = attach_to_workers(workers=addresses)
        found.initialized.get(30)
        yield found
        workers.end()


@pytest.fixture
def two(hosts, monkeypatch):
    monkeypatch.setattr(monarch_nb, "unhandled_fault_hook", lambda _: None, raising=False)
    made = Hosts(hosts)
    yield made
    made.procs.stop().get(20)


def test_a_cell_needs_no_boilerplate_and_axes_have_groups(two):
    two.ok("dist.all_reduce(x); assert x.item() == 6; dist.barrier()")
    two.ok("g = dist.new_group([1, 2])\nif rank in (1, 2): dist.all_reduce(x, group=g)")
    two.ok("dist.all_reduce(x, group=mesh.group('hosts')); assert x.item() == 2 * (rank % 2) + 2")
    two.ok("dist.all_reduce(x, group=mesh.slice(hosts=1).group()); assert x.item() == 5", 1)
    two.ok("o = [None] * 4; dist.all_gather_object(o, rank); assert o == [0, 1, 2, 3]")
    two.ok("dist.destroy_process_group(); dist.init_process_group('gloo'); dist.barrier()")


def test_endpoints_make_groups(two):
    actors = two.procs.spawn("trainers", Trainer)
    whole = two.procs.group(("hosts", "gpus"))
    assert list(actors.total.call(whole, two.procs).get(WITHIN_S).values()) == [8.0] * 4
    assert list(actors.init.call().get(WITHIN_S).values()) == [4.0] * 4


def test_a_script_makes_its_groups_and_leaves_no_keys(two, tmp_path):
    two.ok("dist.barrier()")
    before = len(client().parts[Stores])
    path = tmp_path / "train.py"
    path.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nx = torch.ones(1); dist.all_reduce(x)\n"
        "assert x.item() == int(os.environ['WORLD_SIZE']) == 4\n"
        "assert os.environ['GROUP_WORLD_SIZE'] == '2'\n"
        "dist.barrier(group=dist.new_group([0, 3]))\n"
    )
    script = Script(str(path), [], False, [0, 1, 2, 3], [0, 0, 1, 1], "run-1", 29500)
    for _ in range(2):
        run = cells.run_script(two.procs, script, tag=0)
        assert run.wait(WITHIN_S), run
        assert not errors(run)
    eventually(lambda: len(client().parts[Stores]) == before, 5)
    two.ok("dist.barrier()")


def test_a_script_of_spmd_opens_no_port(two, tmp_path):
    """`MASTER_ADDR` is then the name of a host, at which PyTorch's own store would listen."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, socket, torch, torch.distributed as dist\n"
        "assert os.environ['MASTER_ADDR'] not in ('localhost', '127.0.0.1')\n"
        "dist.init_process_group('gloo'); x = torch.ones(1); dist.all_reduce(x)\n"
        "assert x.item() == 4; port = int(os.environ['MASTER_PORT'])\n"
        "assert socket.socket().connect_ex(('127.0.0.1', port)), 'somebody listens'\n"
    )
    actors = two.procs.spawn("spmd", SPMDActor)
    first = actors.slice(hosts=0, gpus=0)
    address, port = first.get_host_port.call_one(None).get(WITHIN_S)
    assert all(actors.main.call(address, port, [str(path)]).get(WITHIN_S).values())


def test_regroup_and_heal(two):
    two.ok("dist.barrier()")
    done = two.xray.regroup(two.procs)
    assert done.backend == "gloo"
    two.ok("dist.all_reduce(x); assert x.item() == 6")
    os.kill(two.pids[3], signal.SIGKILL)
    eventually(lambda: "lost ranks [3]" in repr(two.procs), 10)
    two.procs.heal()
    two.ok("dist.all_reduce(x); assert x.item() == 6")
    two.ok("dist.all_reduce(x, group=mesh.group('hosts'))")


@pytest.mark.fault
def test_a_member_on_the_other_host_that_died_is_named(two):
    two.ok("g = mesh.group(); dist.barrier(group=g)")
    run = two.start("dist.barrier(group=g)", 0)
    two.waits("barrier", 0, 1)
    os.kill(two.pids[3], signal.SIGKILL)
    assert run.wait(10), "nobody waits for the dead"
    for said in errors(run).values():
        assert "rank 3 has died, so this process group is of no use any more" in said


@pytest.mark.fault
def test_who_died_before_the_next_group_is_named(two):
    two.ok("dist.barrier()")
    run = two.start("dist.destroy_process_group(); dist.init_process_group('gloo')", 0)
    two.waits("init_process_group", 0, 1)
    os.kill(two.pids[2], signal.SIGKILL)
    assert run.wait(10), "it ends long before its time-out"
    assert set(errors(run)) == {0, 1}
    assert all("rank 2 ended before init_process_group" in each for each in errors(run).values())


def test_who_does_not_come_is_named_and_looked_up_before(two):
    limit = "timeout=datetime.timedelta(seconds=4)"
    run = two.start(f"import datetime; dist.init_process_group('gloo', {limit})", 0)
    two.waits("init_process_group", 0, 1)
    here = inside.processes(two.procs)[:2]
    told = ask_all.ask(client().proc, dict.fromkeys(here, GetStandings()), 2.0)
    assert [each.waits[0].awaited[0].peers for each in told.values()] == [[2, 3], [2, 3]]
    assert run.wait(15)
    for said in errors(run).values():
        assert "ranks 2, 3 did not come to init_process_group within 0:00:04" in said


@pytest.mark.parametrize(
    "code, what",
    [
        ("dist.init_process_group('gloo')", "init_process_group"),
        ("mesh.group()", "the group of ranks 0,1,2,3"),
        ("if rank: mesh.group(('hosts',), timeout=600)", "the group of ranks 1,3"),
        ("store.get('never')", "store.wait"),
    ],
)
def test_an_interrupt_ends_the_wait(two, code, what):
    if "store" in code:
        two.ok("dist.barrier(); store = dist.distributed_c10d._get_default_store()")
    run = two.start(code, 0)
    two.waits(what, 1)
    run.interrupt()
    assert run.wait(3), run
    assert "interrupted" in {each.status for each in run.outcomes.values()}
    two.ok("dist.all_reduce(x); assert x.item() == 6")


def test_an_interrupt_ends_the_wait_of_an_endpoint(two):
    actors = two.procs.slice(hosts=0).spawn("trainers", Trainer)
    waiting = actors.init.call()
    two.waits("init_process_group", 0, 1)
    waiting.cancel()
    assert "Interrupted" in repr(waiting.exception(5))


def test_a_controller_that_computes_answers(two):
    run = two.start("dist.all_reduce(x); assert x.item() == 6")
    deadline = time.monotonic() + 20
    while not run.done() and time.monotonic() < deadline:
        re.match(r"(a?){18}a{18}", "a" * 18)  # in C, with Python's lock
    assert run.done()
    assert not errors(run)


def test_ranks_use_the_interface_of_the_link(two):
    two.ok("import os; assert os.environ['GLOO_SOCKET_IFNAME'] == 'lo'")
    two.ok("assert os.environ['NCCL_SOCKET_IFNAME'] == 'lo'")


def test_the_keys_go_with_the_mesh(two):
    two.ok("dist.barrier()")
    stores = client().parts[Stores]
    assert len(stores) == 1
    two.procs.stop().get(20)
    assert len(stores) == 0
