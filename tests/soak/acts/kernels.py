"""A second kernel: it ends or its host does, others look at its mesh, take it over or adopt it."""

import os
import signal

import psutil

from tests import support
from tests.kernel.client import KernelClient
from tests.soak.stage import DEADLINE_S, Stage, end_kernel, kill_kernel, lines_of, pids_in, same

SUM = """from monarch_nb import Actor, endpoint
class Sum(Actor):
    def __init__(self):
        self.total = 0
    @endpoint
    def add(self, n):
        self.total += n
        return self.total
sums = lasting.spawn("sums", Sum)
print(sums.add.call(1).get().values())"""


def a_kept_mesh_is_adopted(stage: Stage) -> None:
    before = stage.world.run_dirs()
    with Second() as first:
        first.ok("%mesh up --gpus 2 --name lasting --keep 10m", timeout_s=DEADLINE_S)
        first.ok("%%mesh\nx = rank + 40")
        assert "[1, 1]" in first.ok(SUM, timeout_s=DEADLINE_S).text()
        told = first.ok("%%mesh\nimport os\nprint('pid', os.getpid())", timeout_s=DEADLINE_S).text()
        ranks = pids_in(told)
        if how := stage.dice.randrange(2):
            kill_kernel(first)
        else:
            end_kernel(first)
    stage.note(f"the first kernel was {'killed' if how else 'shut down'}")
    assert all(map(support.is_running, ranks))
    with Second() as second:
        assert "is back" in second.ok("%mesh attach lasting", timeout_s=DEADLINE_S).text()
        cell = second.ok("%%mesh\nx", timeout_s=DEADLINE_S)
        same(lines_of(cell.shown), {0: ["40"], 1: ["41"]}, cell.shown)
        told = second.ok("print(sums.add.call(2).get().values())", timeout_s=DEADLINE_S).text()
        assert "[3, 3]" in told, told
        second.ok("%mesh down", timeout_s=DEADLINE_S)
        end_kernel(second)
    all_gone(ranks)
    same_dirs(stage, before)


def a_kernel_is_killed(stage: Stage) -> None:
    """With a mesh that is not kept, idle or at work: all that it had started ends with it."""
    before = stage.world.run_dirs()
    with Second() as kernel:
        kernel.ok("%mesh up --gpus 3", timeout_s=DEADLINE_S)
        below = support.descendants(kernel.manager.provisioner.pid)
        if stage.dice.random() < 0.5:
            kernel.start("%%mesh\nfor i in range(10**9): print(i)")
            kernel.until(lambda: kernel.cells and any(c.text() for c in kernel.cells.values()))
        kill_kernel(kernel)
    all_gone(below)
    same_dirs(stage, before)


def its_agent_is_killed(stage: Stage) -> None:
    """All ranks of the host are lost at once, and come back on a new one."""
    before = stage.world.run_dirs()
    with Second() as kernel:
        kernel.ok("%mesh up --gpus 2 --name local", timeout_s=DEADLINE_S)
        pid = kernel.manager.provisioner.pid
        [agent] = psutil.Process(pid).children()
        below = support.descendants(pid)
        os.kill(agent.pid, signal.SIGKILL)
        all_gone(below)
        told = kernel.run("%%mesh\nrank", timeout_s=DEADLINE_S).error
        assert "ranks 0-1" in told, told
        kernel.ok("%mesh heal", timeout_s=DEADLINE_S)
        cell = kernel.ok("%%mesh\nrank", timeout_s=DEADLINE_S)
        same(lines_of(cell.shown), {0: ["0"], 1: ["1"]}, cell.shown)
        below = support.descendants(pid)
        end_kernel(kernel)
    all_gone(below)
    same_dirs(stage, before)


def a_mesh_is_taken_over(stage: Stage) -> None:
    """While it is used: the first kernel is told so, and may take it back."""
    before = stage.world.run_dirs()
    with Second() as first, Second() as other:
        first.ok("%mesh up --gpus 2 --name shared --keep 10m", timeout_s=DEADLINE_S)
        first.ok("%%mesh\nx = rank + 70", timeout_s=DEADLINE_S)
        look = other.ok("%mesh attach shared --view", timeout_s=DEADLINE_S)
        first.ok("%%mesh\nprint('seen', rank)", timeout_s=DEADLINE_S)
        other.until(lambda: "[0] seen 0\n[1] seen 1" in look.text(), DEADLINE_S)
        ranks = pids_in(first.ok("%%mesh\nimport os\nprint('pid', os.getpid())").text())
        first.start("%%mesh\nimport time\nfor _ in range(20): time.sleep(0.1)")
        drives, left = other, first
        for _ in range(stage.dice.choice([1, 2])):
            drives.ok("%mesh attach shared --fence", timeout_s=DEADLINE_S)
            cell = drives.ok("%%mesh\nx", timeout_s=DEADLINE_S)
            same(lines_of(cell.shown), {0: ["70"], 1: ["71"]}, cell.shown)
            told = left.run("%%mesh\nx", timeout_s=DEADLINE_S).error
            assert "%mesh attach shared --fence brings it back here" in told, told
            drives, left = left, drives
        left.ok("%mesh down", timeout_s=DEADLINE_S)
        end_kernel(drives)
        end_kernel(left)
    all_gone(ranks)
    same_dirs(stage, before)


class Second(KernelClient):
    """It ends with the block, unless it has ended before."""

    def __init__(self) -> None:
        super().__init__("monarch")
        self.has_ended = False

    def __exit__(self, *raised: object) -> None:
        if not self.has_ended:
            self.has_ended = True
            super().__exit__(*raised)


def all_gone(pids) -> None:
    support.eventually(
        lambda: not any(map(support.is_running, pids)),
        DEADLINE_S,
        lambda: f"{[support.describe_process(p) for p in pids if support.is_running(p)]} to end",
    )


def same_dirs(stage: Stage, before: set[str]) -> None:
    support.eventually(
        lambda: same(stage.world.run_dirs(), before) is None, DEADLINE_S, "run dirs to be removed"
    )


ACTS = {
    a_kept_mesh_is_adopted: 1, a_kernel_is_killed: 1, its_agent_is_killed: 1,
    a_mesh_is_taken_over: 1,
}  # fmt: skip
