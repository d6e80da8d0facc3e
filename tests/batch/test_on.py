"""`monarch-nb run --on`: the meshes of the notebook are on hosts of that job."""

import os
import signal

import pytest

from monarch_nb.control.jobs.kept import records
from tests.batch.story import notebook_on_hosts
from tests.batch.terminal import notebook, refused, shown, start, typed, until_shown
from tests.support import descendants, describe_process, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_meshes_that_name_no_hosts_are_on_those_of_the_run(folder):
    path = notebook(
        folder / "far.ipynb",
        "%mesh up --gpus 2",
        "mesh0.sizes",
        "%mesh up --on processes --hosts 3 --gpus 1 --name own",
        "own.sizes",
    )
    code, out, err = typed("run", path, "--on", "processes", "--hosts", "2")
    assert (code, err) == (0, ""), out
    output = folder / "far.run-1.ipynb"
    assert "4 ranks (hosts=2 gpus=2)" in shown(output, 0)
    assert shown(output, 1) == "{'hosts': 2, 'gpus': 2}\n"
    assert shown(output, 3) == "{'hosts': 3, 'gpus': 1}\n"


def test_a_profile_says_how_many_ranks_where_the_notebook_does_not(folder):
    profiles = folder / "config/monarch_nb/profiles.toml"
    profiles.parent.mkdir(parents=True)
    profiles.write_text('[pair]\non = "processes"\nhosts = 2\ngpus = 2\n')
    path = notebook(
        folder / "far.ipynb", "%mesh up", "mesh0.sizes", "%mesh up --new 1", "mesh1.sizes"
    )
    code, out, _ = typed("run", path, "--on", "pair")
    assert code == 0, out
    assert shown(folder / "far.run-1.ipynb", 1) == "{'hosts': 2, 'gpus': 2}\n"
    assert shown(folder / "far.run-1.ipynb", 3) == "{'hosts': 2, 'gpus': 1}\n"


@pytest.fixture
def holder(folder):
    """The process that holds a job of two hosts, called `held`."""
    assert typed("apply", "--on", "processes", "--hosts", 2, "--name", "held")[0] == 0
    record = records.find("held")
    yield record.pid
    assert typed("kill", "--name", "held")[0] == 0


def lent(holder):
    """What has a host of another program among the processes of a job."""
    below = map(describe_process, descendants(holder))
    return [each for each in below if "monarch_nb.host.join" in each and "--parent" in each]


def test_a_job_that_is_applied_lends_its_hosts_and_keeps_them(folder, holder):
    path = notebook_on_hosts(folder)
    code, out, err = typed("run", path, "--on", "held")
    assert (code, err) == (0, ""), out
    assert "mesh0 is up: 2 ranks (hosts=2 gpus=1)" in shown(folder / "far.run-1.ipynb", 1)
    assert shown(folder / "far.run-1.ipynb", 2) == "[0] 0\n[1] 10\n"
    eventually(lambda: not lent(holder))
    run = start(path, "-p", "then=wait", "--on", "held", "--hosts", 1)
    until_shown(run.output, 4, "in")
    assert "1 rank (hosts=1 gpus=1)" in shown(run.output, 2)
    assert len(lent(holder)) == 1
    os.kill(run.now().pid, signal.SIGKILL)
    eventually(lambda: not lent(holder))
    assert sorted(typed("exec", "echo", "there")[1].splitlines()) == ["[0] there", "[1] there"]
    assert "has 2 hosts, not 3" in typed("run", path, "--on", "held", "--hosts", 3)[1]
    assert refused("run", path, "--on", "hold").endswith("; jobs of monarch-nb apply: held")
