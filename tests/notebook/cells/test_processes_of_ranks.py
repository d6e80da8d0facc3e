"""Cells that fork, and cells whose ranks meet in process groups, over real ranks."""

import pytest

from tests.notebook.ranks import stop

FIRST_CELLS = ["%mesh up --gpus 4"]
FORK = "%%mesh 0\nimport os, sys\npid = os.fork()\nif pid == 0:\n    {}\n"
CODE = "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"


@pytest.mark.parametrize("does, code", [("x = 1", 0), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_fork_that_a_cell_does_not_end_ends_like_a_program(kernel, does, code):
    ends = f"if pid == 0: pass\nelse: code = {CODE}\n"
    kernel.ok(FORK.format(does) + ends)
    assert kernel.ok("%%mesh 0\ncode").shown == f"[0] {code}\n"


def test_what_a_fork_failed_with_is_told(kernel):
    cell = kernel.ok(FORK.format("raise ValueError('in the child')") + f"{CODE};")
    kernel.until(lambda: "ValueError: in the child" in cell.text("stderr"))
    assert "line 5, in <module>" in cell.text("stderr")
    assert "monarch_nb" not in cell.text("stderr")


BEGIN = "import torch, torch.distributed as dist\nprint('started')\ndist.init_process_group("
JOIN = f"{BEGIN}'gloo')\n"
ADD = "ones = torch.ones(1)\ndist.all_reduce(ones)\n"
LEAVE = "dist.destroy_process_group()\n"


def test_a_group_that_some_ranks_have_waited_for_in_vain_is_forgotten(kernel):
    """A frequent slip: the cell ran on one rank, which waits for the others."""
    cell, _ = stop(kernel, f"%%mesh 0\n{JOIN}")
    assert "all ranks have stopped" in cell.error
    late = f"import datetime\n{BEGIN}'gloo', timeout=datetime.timedelta(seconds=0.1))"
    cell = kernel.run(f"%%mesh 0-1\n{late}")
    assert "ranks 2, 3 did not come to init_process_group within 0:00:00.1" in cell.error
    cell = kernel.ok(f"%%mesh\n{JOIN}{ADD}{LEAVE}ones")
    assert cell.displays[-1] == {"text/plain": "[0-3] tensor([4.])"}


def test_ranks_that_have_met_without_the_others_meet_with_them(kernel):
    for pair in ("0-1", "2-3"):
        kernel.ok(f"%%mesh {pair}\n{BEGIN}'gloo', rank=rank % 2, world_size=2)\n{ADD}")
    kernel.ok(f"%%mesh\n{LEAVE}")
    cell = kernel.ok(f"%%mesh\n{JOIN}{ADD}{LEAVE}ones")
    assert cell.displays[-1] == {"text/plain": "[0-3] tensor([4.])"}
