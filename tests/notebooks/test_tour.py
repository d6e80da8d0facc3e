"""The tour runs from top to bottom, and shows its reader what its text says."""

import re
from typing import Any

import pytest

from tests.notebooks import reading

NOTEBOOK = reading.NOTEBOOKS / "tour.ipynb"
STEPS = 3

pytestmark = pytest.mark.timeout(2 * reading.LIMIT_S)


@pytest.fixture(scope="module")
def executed() -> Any:
    """The tour, run as `make demo` runs it. A cell that fails unexpectedly fails every test."""
    return reading.execute(NOTEBOOK)


def epochs(text: str) -> list[float]:
    """The losses of the epochs, however many ranks printed each line at once."""
    found = dict(re.findall(r"epoch (\d): loss (\d\.\d{4})", text))
    return [float(found[str(number)]) for number in sorted(map(int, found))]


# ------------------------------------------------------------------------------ what a reader sees


def test_ranks_come_up_and_say_who_they_are(shown):
    assert "mesh0 is up: 4 ranks (gpus=4)" in shown("%mesh up --gpus 4")
    lines = sorted(shown('print(f"rank {rank} of').splitlines())
    assert [line.rsplit(" computes on ")[0] for line in lines] == [
        f"[{rank}] rank {rank} of 4 at {{'gpus': {rank}}}" for rank in range(4)
    ]


def test_what_is_equal_is_shown_once(shown):
    lines = shown('print("PyTorch"').splitlines()
    assert lines[-2:] == ["[0-1] tensor([0, 1, 2])", "[2-3] tensor([1, 2, 3])"]
    assert all("PyTorch 2." in line for line in lines[:-2])


def test_losses_fall_and_are_those_of_one_process(shown):
    on_ranks, in_one = epochs(shown("dist.all_reduce(mean)")), epochs(shown("reference = []"))
    assert len(on_ranks) == 5
    assert on_ranks == sorted(on_ranks, reverse=True)
    assert on_ranks[-1] < 0.5
    assert on_ranks == in_one
    line = re.fullmatch(
        r"35 steps on 4 ranks and in one process: losses differ by at most (\S+)\n",
        shown('mesh0.spawn("variables"'),
    )
    assert float(line[1]) < 1e-5


def test_system_info_of_all_ranks(shown):
    text = shown('print("Gathering system info')
    pids = re.findall(r"^Rank \d: PID=(\d+), Device=.+, GPU Memory=\d+\.\dMB$", text, re.MULTILINE)
    own = re.findall(r"^\[\d\] System Info: PID=(\d+), CPU=", text, re.MULTILINE)
    assert len(set(pids)) == 4
    assert set(own) == set(pids)
    assert "Found 4 ranks in the mesh" in text


def test_training_steps_of_the_actor(shown):
    text = shown('print("Running training steps')
    each = re.findall(r"^\[(\d)\] Step (\d): Loss=\S+, GradNorm=(\S+), Time=", text, re.MULTILINE)
    assert len(each) == 4 * STEPS
    losses = re.findall(r"^Losses across ranks: \[(.+)\]$", text, re.MULTILINE)
    means = [sum(float(one.strip("' ")) for one in line.split(",")) / 4 for line in losses]
    assert len(means) == STEPS
    assert means == sorted(means, reverse=True)
    for line in re.findall(r"^Gradient norms: \[(.+)\]$", text, re.MULTILINE):
        assert len(set(line.split(", "))) == 1, "DDP averages gradients, so the norms are equal"
    assert len(re.findall(r"^Avg throughput: \d+\.\d samples/sec$", text, re.MULTILINE)) == STEPS


def test_a_slice_is_two_ranks(shown):
    lines = sorted(shown("accuracy = ").splitlines())
    found = [re.fullmatch(r"\[(\d)\] (\d+)\.\d% of (\d+) images", line).groups() for line in lines]
    assert [(rank, count) for rank, _, count in found] == [("0", "899"), ("1", "898")]
    assert all(int(percent) > 85 for _, percent, _ in found)


def test_ranks_that_fail_alike_share_a_traceback(shown):
    text = shown("def check(images)")
    assert text.startswith("ranks 1,3: ValueError, 2 different messages\n")
    assert text.count("Traceback (most recent call last):") == 1
    assert re.search(
        r"^  Cell In\[\d+\], line 10, in <module>\n    check\(images\)$", text, re.MULTILINE
    )
    assert re.search(
        r"^  Cell In\[\d+\], line 4, in check\n    raise ValueError\(", text, re.MULTILINE
    )
    for rank in (1, 3):
        assert f"  rank {rank}: the 449 images of rank {rank} are black" in text
    assert "35 losses, 449 images" in shown("{len(losses)} losses, ")


def test_a_killed_rank_is_named_and_the_others_go_on(shown):
    text = shown("os.kill(os.getpid()")
    assert "still here" in text
    assert re.search(r"^rank 3: .*SIGKILL", text, re.MULTILINE)
    assert "%mesh heal" in text
    status = shown("%mesh status")
    assert "mesh0: 4 ranks" in status
    assert re.search(r"^3 .*exited", status, re.MULTILINE)
    assert "SIGKILL" in status
    assert "35 losses are still here" in shown("%%mesh gpus=0:3")


def test_healing_makes_the_mesh_whole(shown):
    assert shown("%mesh heal") == (
        "mesh0 is whole again: 4 ranks (gpus=4); rank 3 started again, with an empty namespace. "
        "%mesh replay 3 --ranks 3 runs there what cells have defined\n"
    )
    text = shown("the ranks add up to")
    assert "[3] the ranks add up to 6; this one has forgotten the training" in text
    assert text.count("remembers the training") >= 1
    again = shown("await trainer.setup.call()\nstep")
    assert len(re.findall(r"^\[\d\] Step 1: Loss=", again, re.MULTILINE)) == 4
    assert shown("%mesh down") == "mesh0 is down\n"


# ----------------------------------------------------------------------- the file in the repository


def test_the_committed_tour_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed)
