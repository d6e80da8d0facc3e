"""Errors of users end with what to type next."""

import pytest

SETUP = """%%mesh
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
class Model(torch.nn.Linear):
    def loss(self): return 1
dist.init_process_group("gloo")
model = DistributedDataParallel(Model(2, 2))"""

FIRST_CELLS = ["%mesh up --gpus 2", SETUP]

pytestmark = pytest.mark.timeout(120)


def test_a_name_of_ranks_in_the_controller(kernel):
    error = kernel.run("print(rank)").error
    assert "NameError: name 'rank' is not defined" in error
    assert error.endswith("rank is a name that ranks have; %%mesh above the cell runs it there")
    assert not kernel.run("other_name").error.endswith("there")


def test_a_traceback_of_ranks_has_colours_and_names_debug(kernel):
    cell = kernel.run("%%mesh\nif rank == 1: 1 / 0")
    [error] = cell.contents("error")
    assert "\x1b[31mZeroDivisionError\x1b[0m: division by zero" in "\n".join(error["traceback"])
    assert cell.error.endswith("\n\n%debug opens pdb where rank 1 failed")
    assert "%debug" not in kernel.run("%%mesh\n1 +").error, "nothing ran"


def test_after_an_error_of_a_gpu_that_stays(kernel):
    told = "raise RuntimeError('CUDA error: {}\\nFor debugging consider passing more')"
    error = kernel.run("%%mesh\n" + told.format("device-side assert triggered")).error
    assert error.endswith(
        "ranks 0-1 cannot use the GPU any more; "
        "%mesh restart 0-1 starts again, with empty namespaces"
    )
    assert "restart" not in kernel.run("%%mesh\n" + told.format("out of memory")).error


def test_a_model_in_ddp(kernel):
    error = kernel.run("%%mesh\nmodel.loss()").error
    assert "object has no attribute 'loss'" in error
    assert "DistributedDataParallel wraps a model that has it: try model.module.loss" in error


def test_carets_stand_below_what_they_mean_in_long_lines(kernel):
    long = "x = len('" + "a" * 150 + "') + (5).missing + 1"
    lines = kernel.run(f"%%mesh 0\n{long}").error.splitlines()
    [place] = [number for number, line in enumerate(lines) if set(line.strip()) == {"^"}]
    source, carets = lines[place - 1], lines[place]
    assert len(source) < 100
    start = carets.index("^")
    assert source[start : len(carets)].endswith("(5).missing")
