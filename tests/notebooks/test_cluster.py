"""The notebook on a cluster: what its reader sees, and that it runs on a real Slurm of two nodes.

`MONARCH_NB_WRITE=1` has the outputs of this run written into the repository.
"""

import os
import re
from typing import Any

import nbformat
import pytest

from monarch_nb.host.rundir import sweep_all
from tests.clusters.conftest import can_have_machines, slurm
from tests.clusters.slurm import Cluster
from tests.notebooks import reading
from tests.source import ROOT

__all__ = ["can_have_machines", "slurm"]

NODES = 2
NOTEBOOK = reading.NOTEBOOKS / "cluster.ipynb"
TYPED = {
    "%mesh pm 3": [
        ("q leaves all ranks", "p bad[:, 0]"),
        ("tensor([ 7, 70])", "up"),
        ("-> check(targets)", "p targets[7], wanted[7]"),
        ("(tensor([nan]", "q"),
    ]
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * reading.LIMIT_S),
    pytest.mark.usefixtures("slurm"),  # the nodes are there before leaks of a test are looked for
]


@pytest.fixture(scope="module")
def executed(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run now, with somebody who types; nothing of it is left on the cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_NB_HOME", str(folder / "home"))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        found = reading.execute(NOTEBOOK, folder, TYPED)
    slurm.assert_idle()
    sweep_all()
    if os.environ.get("MONARCH_NB_WRITE"):
        nbformat.write(found, NOTEBOOK)
    return found


def losses(text: str) -> list[tuple[float, float]]:
    """The first and the last of each line that tells them."""
    found = re.findall(r"loss (\d\.\d{4}) -> (\d\.\d{4})", text)
    return [(float(first), float(last)) for first, last in found]


def test_two_nodes_come_from_the_queue_and_say_who_they_are(shown):
    up = shown("%mesh up")
    assert re.search(r"2/2 hosts -> ranks up in [\d.]+ s\n", up)
    assert "mesh0 is up: 4 ranks (hosts=2 gpus=2)" in up
    assert re.search(r"^mesh0 +slurm +\d+ +up +2/2 ", shown("%mesh jobs"), re.MULTILINE)
    assert shown("gethostname").splitlines() == [
        f"[{rank}] \"rank {rank} of 4 is on node{1 + rank // 2}, at {{'hosts': {rank // 2}, "
        f"'gpus': {rank % 2}}}, and computes on cpu\""
        for rank in range(4)
    ]


def test_losses_are_those_of_one_process(shown):
    [alone] = losses(shown("alone = train"))
    [together] = losses(shown("together ="))
    assert together == alone
    assert together[1] < 0.1 * together[0]
    assert shown("together =").endswith("every step as in one process, to 1e-9: True\n")


def test_a_rank_that_fails_is_named_and_its_frames_are_looked_at(shown):
    failed = shown("def check(targets)")
    assert failed.startswith("rank 3: ValueError: 2 targets are not a number\n")
    assert re.search(r"Cell In\[\d+\], line \d, in check\n", failed)
    prompt = shown("%mesh pm 3")
    assert re.match(r"rank 3 at Cell In\[\d+\]:\d check\(\), where it failed\n", prompt)
    assert "(rank 3)  p bad[:, 0]\ntensor([ 7, 70])\n" in prompt
    assert "(rank 3)  p targets[7], wanted[7]\n(tensor([nan], " in prompt
    assert prompt.endswith("(rank 3)  q\n")


def test_a_rank_that_dies_is_healed_and_training_goes_on(shown):
    died = shown("os.kill")
    assert "[0-2] '100 losses are here'\n" in died
    assert "rank 3: the process was killed by signal 9 (SIGKILL)\n" in died
    assert "mesh0 is whole again: 4 ranks (hosts=2 gpus=2)" in shown("%mesh heal")
    [(_, before)] = losses(shown("together ="))
    for first, last in losses(shown("known = ")):
        assert last < first < 1.1 * before


def test_nothing_is_left_in_the_queue(shown):
    assert shown("%mesh down") == "mesh0 is down, the hosts of mesh0 are given back\n"
    [line] = shown("!squeue").splitlines()
    assert line.split()[:3] == ["JOBID", "PARTITION", "NAME"]


def test_the_committed_notebook_is_what_runs(executed):
    reading.check_committed(NOTEBOOK, executed, but=("%mesh pm 3",))
