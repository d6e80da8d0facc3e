"""Collectives of gloo that hang: an interrupt ends them, and the ranks keep what they have."""

import os
import signal
import time

import pytest

from tests.control.conftest import WITHIN_S, Mesh
from tests.support import eventually, stop

FREE_S = 1.0
INIT = """
import torch, datetime, time
import torch.distributed as dist
dist.init_process_group('gloo'{options})
kept = rank
ones = torch.ones(4)
"""
HANGS = {
    "all_reduce": "dist.all_reduce(ones)",
    "broadcast": "dist.broadcast(ones, 1)",
    "barrier": "dist.barrier()",
    "all_gather": "dist.all_gather([torch.empty(4), torch.empty(4)], ones)",
    "all_gather_object": "dist.all_gather_object([None, None], 1)",
    "reduce": "dist.reduce(ones, 0)",
    "gather": "dist.gather(ones, [torch.empty(4), torch.empty(4)], dst=0)",
    "scatter": "dist.scatter(ones, src=1)",
    "all_to_all_single": "dist.all_to_all_single(torch.empty(4), ones)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(torch.empty(2), ones)",
    "recv": "dist.recv(ones, 1)",
    "recv_from_any": "dist.recv(ones)",
    "send": "dist.send(torch.ones(30_000_000), 1)",
    "monitored_barrier": "dist.monitored_barrier()",
    "wait": "dist.all_reduce(ones, async_op=True).wait()",
}


def up(mesh, ranks: int = 2, options: str = "") -> Mesh:
    made = mesh(ranks)
    assert set(made.cell(INIT.format(options=options)).values()) == {"ok"}
    return made


def pid_of(made: Mesh, rank: int) -> int:
    return made.client.snapshot().meshes[-1].ranks[rank].pid


def waits(made: Mesh, rank: int, what: str) -> None:
    """Until the rank waits for others in it."""

    def is_there() -> bool:
        status = made.client.snapshot().meshes[-1].ranks[rank]
        return (status.state, status.what) == ("collective", what)

    eventually(is_there, WITHIN_S, what=lambda: str(made.client.snapshot().meshes[-1].ranks[rank]))


def error(made: Mesh, code: str, **where: int):
    run = made.start(code, **where)
    assert run.wait(WITHIN_S), run
    [outcome] = run.outcomes.values()
    return outcome.error


@pytest.mark.parametrize("what", HANGS)
def test_an_interrupt_ends_it_and_the_namespace_stays(mesh, what, goal):
    made = up(mesh)
    run = made.start(f"kept = 'hung'\n{HANGS[what]}", gpus=0)
    waits(made, 0, what.removesuffix("_from_any"))
    pressed = time.monotonic()
    run.interrupt()
    assert run.wait(WITHIN_S)
    goal("a collective is stopped: rank free", time.monotonic() - pressed, FREE_S)
    assert run.outcomes[0].error.ename == "KeyboardInterrupt"
    assert made.cell("assert kept == ('hung' if rank == 0 else 1)") == {0: "ok", 1: "ok"}


@pytest.mark.slow
def test_an_interrupt_ends_the_reducer_of_ddp(mesh, goal):
    """It waits in C++, in the backward pass. The group is broken for that."""
    made = up(mesh)
    net = "kept = 'hung'\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))"
    made.cell(net)
    run = made.start("model(torch.ones(1, 2)).sum().backward()", gpus=0)
    assert not run.wait(2.0)
    pressed = time.monotonic()
    run.interrupt()
    assert run.wait(WITHIN_S)
    goal("a collective is stopped: rank free", time.monotonic() - pressed, FREE_S)
    assert run.outcomes[0].error.ename == "KeyboardInterrupt"
    assert made.cell("assert kept == 'hung'") == {0: "ok", 1: "ok"}
    assert "left its last backward pass" in error(made, "dist.barrier()", gpus=0).evalue


@pytest.mark.parametrize("what", ["all_reduce", "recv"])
def test_a_group_that_was_left_says_what_to_type(mesh, what):
    made = up(mesh)
    run = made.start(HANGS[what], gpus=0)
    waits(made, 0, what)
    run.interrupt()
    assert run.wait(WITHIN_S)
    stop = run.outcomes[0].error
    assert (stop.ename, stop.context, stop.cause) == ("KeyboardInterrupt", None, None)
    raised = error(made, "dist.barrier()", gpus=0)
    assert raised.evalue == (
        "the process group cannot be used any more: this rank has left its last "
        f"{what} before it had ended. Type: %mesh regroup"
    )


def test_what_was_left_can_still_end_and_then_the_group_is_as_before(mesh):
    made = up(mesh)
    run = made.start("dist.all_reduce(ones)", gpus=0)
    waits(made, 0, "all_reduce")
    run.interrupt()
    assert run.wait(WITHIN_S)
    made.cell("dist.all_reduce(ones)", gpus=1)
    code = "dist.all_reduce(ones); assert ones.tolist() == [4.0] * 4, ones"
    assert made.cell(code) == {0: "ok", 1: "ok"}


def test_a_long_wait_ends_as_a_short_one(mesh):
    made = up(mesh)
    code = "if rank: time.sleep(0.4)\ndist.all_reduce(ones); assert ones.tolist() == [2.0] * 4"
    assert made.cell(code) == {0: "ok", 1: "ok"}
    code = "if rank: time.sleep(0.4); dist.send(ones, 0)\nelse: dist.recv(ones, 1)"
    assert made.cell(code) == {0: "ok", 1: "ok"}


@pytest.mark.fault
def test_a_rank_that_has_died_is_named(mesh, goal):
    made = up(mesh)
    pid = pid_of(made, 1)
    run = made.start("dist.all_reduce(ones)", gpus=0)
    waits(made, 0, "all_reduce")
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert run.wait(WITHIN_S)
    goal("SIGKILL in a collective: who waits is told", time.monotonic() - at, 0.5)
    assert "all_reduce: rank 1 has died" in run.outcomes[0].error.evalue


@pytest.mark.fault
def test_a_rank_that_is_stopped_is_silent_to_those_who_wait(mesh, goal):
    """It may go on, and then all is well."""
    made = up(mesh)
    pid = pid_of(made, 1)
    run = made.start("dist.all_reduce(ones); assert ones.tolist() == [2.0] * 4", gpus=0)
    waits(made, 0, "all_reduce")
    at = time.monotonic()
    stop(pid)
    try:
        is_silent = lambda: made.client.snapshot().meshes[-1].ranks[1].state == "silent"
        eventually(is_silent, 25.0)
        goal("SIGSTOP while others wait: silent", time.monotonic() - at, 2.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert made.cell("dist.all_reduce(ones)", gpus=1) == {1: "ok"}
    assert run.wait(WITHIN_S)
    assert run.outcomes[0].error is None


@pytest.mark.fault
def test_a_wait_for_one_that_lives_ends_when_others_of_the_group_have_died(mesh):
    """Also where the neighbours, by which a group is closed, are the dead ones."""
    made = up(mesh, 4)
    assert set(made.cell("dist.barrier()").values()) == {"ok"}
    run = made.start("dist.recv(ones, 3)", gpus=1)
    waits(made, 1, "recv")
    for rank in (0, 2):
        made.start("import os; os._exit(0)", gpus=rank)
    assert run.wait(WITHIN_S)
    assert run.outcomes[1].error is not None


SECOND = ", timeout=datetime.timedelta(seconds=1)"


def test_the_time_of_the_group_is_counted(mesh):
    made = up(mesh, options=SECOND)
    began = time.monotonic()
    raised = error(made, "dist.all_reduce(ones)", gpus=0)
    assert 1.0 < time.monotonic() - began < 4.0
    assert raised.evalue == (
        "all_reduce timed out: not all ranks came to it within 0:00:01. "
        "%mesh collectives shows who is where"
    )


def test_a_time_that_is_given_counts_instead(mesh):
    made = up(mesh)
    code = "dist.all_reduce(ones, async_op=True).wait(datetime.timedelta(seconds=0.3))"
    assert "within 0:00:00.300000" in error(made, code, gpus=0).evalue


@pytest.mark.slow
def test_time_in_a_debugger_does_not_count(mesh):
    """Of any rank, also when it has gone on since."""
    made = up(mesh, options=SECOND)
    code = """
from monarch_nb.process import current
board = current.runtime().hosting.board
if rank == 1:
    board.pause("main", "train.py:41 step()")
    time.sleep(1.5)
    board.unpause("main")
    time.sleep(0.3)
dist.all_reduce(ones)
"""
    assert made.cell(code) == {0: "ok", 1: "ok"}
    code = "if rank == 1: time.sleep(1.5)\ndist.all_reduce(ones)"
    assert made.cell(code)[0] == "error"
