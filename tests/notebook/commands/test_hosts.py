"""`%mesh up --on` in a real kernel: over a fake job, and over hosts that are processes."""

import re

import pytest

from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.host.rundir import sweep_all
from monarch_nb.notebook.extension import load_ipython_extension
from tests.kernel.client import KernelClient
from tests.notebook.conftest import FAKE
from tests.notebook.fake_client import FakeJob, install
from tests.support import descendants, eventually, is_running

FAKE_JOB = """
from monarch_nb.control.doctor import Finding
from monarch_nb.control.jobs.status import JobStatus, Stage
from tests.notebook.fake_client import FakeJob
FakeJob.events.clear()
FakeJob.least = None
def tells(*statuses):
    FakeJob.statuses[:] = [JobStatus("slurm", *each) for each in statuses]
"""
UP = "tells((Stage.QUEUED, 0, 2, '7', 'Priority'), (Stage.JOINING, 1, 2), (Stage.UP, 2, 2))"
ON = "%mesh up --on slurm --hosts 2 --gpus 2"


@pytest.fixture
def faked():
    """A kernel whose jobs are `FakeJob`."""
    with KernelClient("monarch") as kernel:
        kernel.ok(FAKE + FAKE_JOB)
        yield kernel


@pytest.fixture(scope="module")
def kernel():
    """A kernel, whose hosts are processes."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --on processes --hosts 2 gpus=2", timeout_s=60)
        yield client


def rows(cell):
    """The lines of a table below its headings."""
    [data] = cell.displays
    return [re.split(r" {2,}", line.strip()) for line in data["text/plain"].splitlines()[2:]]


# ------------------------------------------------------------------------------------ the live line


def test_one_line_says_how_far_the_hosts_have_come(faked):
    faked.ok(UP)
    cell = faked.ok(ON)
    lines = [content["data"]["text/plain"] for content in
             cell.contents("display_data", "update_display_data")]  # fmt: skip
    assert lines[:4] == [
        "queued (Priority)",
        "queued (Priority) -> 1/2 hosts",
        "queued (Priority) -> 2/2 hosts",
        "queued (Priority) -> 2/2 hosts -> starting ranks",
    ]
    [shown] = cell.displays  # in place
    assert re.fullmatch(r"queued \(Priority\) -> .* -> ranks up in 0\.\d s", shown["text/plain"])
    assert cell.text().startswith("mesh0 is up: 4 ranks (hosts=2 gpus=2) in ")
    assert faked.ok("FakeJob.events").displays == [{"text/plain": "['apply slurm']"}]


def test_a_notebook_that_a_program_runs_keeps_the_last_of_the_line(faked):
    faked.ok(UP)
    [shown] = faked.ok(ON, allow_stdin=False).displays
    assert shown["text/plain"].startswith("queued (Priority) -> 2/2 hosts -> ranks up in ")


def test_a_terminal_has_a_line_for_each_step(shell, capsys):
    load_ipython_extension(shell)
    install(shell)
    told = [(Stage.QUEUED, 0, "Priority"), (Stage.QUEUED, 0, "Resources"), (Stage.JOINING, 1, "")]
    FakeJob.statuses[:] = [
        JobStatus("slurm", stage, joined, 2, reason=reason)
        for stage, joined, reason in [*told, (Stage.UP, 2, "")]
    ]
    shell.run_line_magic("mesh", ON.removeprefix("%mesh "))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["queued (Priority)", "1/2 hosts", "2/2 hosts", "starting ranks"]
    assert lines[4].startswith("mesh0 is up: 4 ranks (hosts=2 gpus=2) in ")


def test_when_a_queued_job_will_start_is_said(faked):
    faked.ok(
        "import time; at = time.time() + 60; clock = time.strftime('%H:%M', time.localtime(at))"
    )
    faked.ok("tells((Stage.QUEUED, 0, 2, '7', 'Resources', at))")
    clock = faked.ok("print(clock)").text().strip()
    cell = faked.start(ON)
    faked.until(lambda: cell.displays)
    assert re.search(rf"queued \(Resources\), starts ~(.* )?{clock}", cell.shown)
    faked.interrupt()
    faked.finish(cell)


def test_the_stop_button_cancels_what_is_queued(faked):
    faked.ok("tells((Stage.QUEUED, 0, 2, '7', 'Priority'))")
    cell = faked.start(ON)
    faked.until(lambda: cell.displays)
    assert faked.stop_s(cell) < 2.0
    assert cell.status == "error"
    assert cell.shown == (
        "queued (Priority) -> cancelled\n"
        "KeyboardInterrupt: mesh0 was not started: its hosts were given back (slurm)\n"
    )
    assert faked.ok("FakeJob.events").displays == [{"text/plain": "['apply slurm', 'kill']"}]
    assert faked.ok("%mesh jobs").text().startswith("No hosts were asked for. Type: %mesh up --on")
    assert faked.ok("%mesh list").text().startswith("No mesh is up.")


def test_hosts_that_will_not_come_are_told_with_the_words_of_the_engine(faked):
    faked.ok("tells((Stage.JOINING, 0, 2), (Stage.GONE, 0, 2, '7', 'node2: no\\nslurm says: x'))")
    cell = faked.run(ON)
    assert cell.shown == "0/2 hosts -> failed\nmesh0 was not started: node2: no\nslurm says: x\n"
    assert faked.ok("FakeJob.events").displays == [{"text/plain": "['apply slurm', 'kill']"}]


def test_a_mesh_on_hosts_is_found_again_replaced_and_given_back(faked):
    faked.ok(UP)
    faked.ok(ON)
    assert "mesh0 is up already: 4 ranks" in faked.ok(ON).text()
    cell = faked.run("%mesh up --on slurm --hosts 3 --gpus 2 --time 1:00")
    assert (
        "Type: %mesh up gpus=2 --on slurm --hosts 3 --time 1:00 --replace, which ends it"
        in cell.error
    )
    faked.ok("%mesh up --on slurm --hosts 3 --gpus 2 --replace")
    assert faked.ok("%mesh down").text() == "mesh0 is down, the hosts of mesh0 are given back\n"
    said = faked.ok("print(FakeJob.events)").text()
    assert said == "['apply slurm', 'kill', 'apply slurm', 'kill']\n"


# -------------------------------------------------------------------------------------------- words


def test_jobs_tells_where_each_stands(faked):
    faked.ok(UP)
    faked.ok(ON)
    faked.ok("import time; tells((Stage.UP, 2, 2, '7', '', None, time.time() + 3 * 3600 + 30))")
    cell = faked.ok("%mesh jobs")
    assert rows(cell) == [["mesh0", "slurm", "7", "up", "2/2", "3.0 h"]]
    assert "<td style='text-align:left'>slurm</td>" in cell.displays[0]["text/html"]
    faked.ok(
        "def fails(job): raise monarch_nb.errors.LaunchError('no answer')\n"
        "import monarch_nb.errors; status, FakeJob.status = FakeJob.status, fails"
    )
    assert rows(faked.ok("%mesh jobs")) == [["mesh0", "not known"]]
    faked.ok("FakeJob.status = status; tells((Stage.GONE, 0, 2, '7', '<b>TIMEOUT\\nmore'))")
    cell = faked.ok("%mesh jobs")
    assert rows(cell) == [["mesh0", "slurm", "7", "gone (<b>TIMEOUT)", "0/2"]]
    assert "&lt;b&gt;TIMEOUT" in cell.displays[0]["text/html"]


def test_script_before_and_after(faked):
    before = faked.ok("%mesh script --on slurm --hosts 3 --gpus 8").text()
    assert before == "#SBATCH --nodes=3\n"
    assert faked.run("%mesh script").error.startswith("No mesh is up.")
    faked.ok(UP)
    faked.ok(ON)
    assert faked.ok("%mesh script").text() == "#SBATCH --nodes=2\n"
    faked.ok("%mesh up 2 --new")
    for line in ("%mesh script", "%mesh script mesh1"):
        assert faked.run(line).error == (
            "mesh1 has no hosts of its own: its ranks are on this machine"
        )
    wrong = faked.run("%mesh script --on slurm mesh0").error
    assert wrong.startswith("%mesh script: does not know 'mesh0'; an axis is given as gpus=4")


def test_the_doctor_names_hosts_that_are_alike_once(faked):
    faked.ok("fake.findings = [Finding('a', 'well'), Finding('b', 'ill', 'eat'),"
             " Finding('c', 'well')]")  # fmt: skip
    assert faked.ok("%mesh doctor").text() == "ok  a, c: well\n!   b: ill\n    -> eat\n"


# ------------------------------------------------------------------------ fewer hosts, more, others


def test_the_stop_button_goes_on_with_the_hosts_that_are_enough(faked):
    faked.ok("tells((Stage.JOINING, 1, 4), (Stage.JOINING, 3, 4, '', 'waiting for d'))")
    faked.ok("FakeJob.least = 3")
    cell = faked.start("%mesh up --on slurm --hosts 4 --min-hosts 3 --gpus 2")
    line = "3/4 hosts (waiting for d; the stop button goes on with 3)"
    faked.until(lambda: line in cell.shown)
    faked.interrupt()
    faked.finish(cell)
    assert cell.status == "ok"
    assert re.search(r"^3/4 hosts \(.*\) -> ranks up in .*", cell.shown)
    assert "mesh0 is up: 6 ranks (hosts=3 gpus=2) in " in cell.text()
    assert faked.ok("print(FakeJob.events)").text() == "['apply slurm', 'settle']\n"


def test_scale_asks_for_more_hosts_and_says_who_keeps_what(faked):
    faked.ok(UP)
    faked.ok(ON)
    assert faked.ok("%mesh scale --hosts 2").text().startswith("mesh0 has 2 hosts already: 4 ranks")
    faked.ok("tells((Stage.JOINING, 2, 3), (Stage.UP, 3, 3)); FakeJob.told = 0")
    cell = faked.ok("%mesh scale --add c")
    assert re.search(r"3/3 hosts -> ranks up in ", cell.shown)
    assert cell.text() == (
        "mesh0 has 3 hosts now: 6 ranks (hosts=3 gpus=2). variables of ranks 0-3 are kept; "
        "process groups are to be made again\n"
    )
    assert (
        "mesh0 is up already: 6 ranks" in faked.ok("%mesh up --on slurm --hosts 3 --gpus 2").text()
    )
    assert (
        "ranks 2-5 ended; variables of ranks 0-1 are kept"
        in faked.ok("%mesh scale mesh0 --hosts 1").text()
    )
    said = faked.ok("print(FakeJob.events)").text()
    assert said == "['apply slurm', 'scale 3 c', 'scale 1']\n"
    wrong = faked.run("%mesh scale")
    assert wrong.error == "%mesh scale: needs to know how many hosts. Type: %mesh scale --hosts 6"
    faked.ok("%mesh up 2 --new")
    assert faked.run("%mesh scale --hosts 2").error == (
        "mesh1 has no hosts of its own: its ranks are on this machine"
    )


def test_a_scale_that_fails_or_is_stopped_leaves_the_mesh_as_it_was(faked):
    faked.ok(UP)
    faked.ok(ON)
    faked.ok("job = fake.makes_job; tells((Stage.JOINING, 2, 3, '', 'waiting for c'))")
    cell = faked.start("%mesh scale --hosts 3")
    faked.until(lambda: "2/3 hosts (waiting for c)" in cell.shown)
    faked.stop_s(cell)
    assert cell.error == "KeyboardInterrupt: mesh0 was not scaled: it is as it was"
    faked.ok("tells((Stage.GONE, 2, 3, '', 'c: no such host'))")
    assert faked.run("%mesh scale --hosts 3").error == "mesh0 was not scaled: c: no such host"
    assert faked.ok("%mesh list").text() == "* mesh0: 4 ranks (hosts=2 gpus=2)\n"
    said = faked.ok("print(FakeJob.events)").text()
    assert said == "['apply slurm', 'scale 3', 'scale 2', 'scale 3', 'scale 2']\n"
    faked.ok("fake.lost_ranks = [1]")
    assert faked.run("%mesh scale --hosts 3").error == ("rank 1 of mesh0 is lost. Type: %mesh heal")


def test_a_shell_is_opened_in_a_terminal(faked):
    faked.ok(UP)
    faked.ok(ON)
    assert faked.ok("%mesh shell 3").text() == (
        "A notebook has no terminal. In one, this opens a shell where rank 3 is:\nenter host1\n"
    )
    assert "is for one rank, not for ranks 0-1" in faked.run("%mesh shell 0-1").error
    assert "rank 9" in faked.run("%mesh shell 9").error
    faked.ok("%mesh up 2 --new")
    assert faked.ok("%mesh shell 1").text() == "rank 1 is on this machine: open a terminal here\n"


# ------------------------------------------------------------------------- hosts that are processes


@pytest.mark.slow
def test_ranks_are_on_hosts_of_their_own(kernel):
    [data] = kernel.ok("%%mesh gpus=0\nimport os; os.getppid()").displays
    first, second = data["text/plain"].splitlines()
    assert first.startswith("[0] ")
    assert second.startswith("[2] ")
    assert first.split()[-1] != second.split()[-1]
    assert kernel.ok("%mesh list").text() == "* mesh0: 4 ranks (hosts=2 gpus=2)\n"
    assert "hosts=1 gpus=0" in kernel.ok("%mesh status").shown
    assert rows(kernel.ok("%mesh jobs")) == [["mesh0", "processes", "up", "2/2"]]
    assert kernel.ok("%mesh script").text().count("-m monarch_nb.host.join --here") == 2


@pytest.mark.slow
def test_ranks_that_stay_keep_what_they_have_when_hosts_come_and_go(kernel):
    kernel.ok("%%mesh\nkept = rank * 10")
    cell = kernel.ok("%mesh scale --hosts 3", timeout_s=60)
    assert "mesh0 has 3 hosts now: 6 ranks (hosts=3 gpus=2)." in cell.text()
    [data] = kernel.ok("%%mesh\nglobals().get('kept'), world_size").displays
    assert data["text/plain"].splitlines() == [
        "[0] (0, 6)", "[1] (10, 6)", "[2] (20, 6)", "[3] (30, 6)", "[4-5] (None, 6)",
    ]  # fmt: skip
    assert rows(kernel.ok("%mesh jobs")) == [["mesh0", "processes", "up", "3/3"]]
    assert kernel.ok("mesh0.sizes").displays == [{"text/plain": "{'hosts': 3, 'gpus': 2}"}]
    assert "ranks 4-5 ended" in kernel.ok("%mesh scale --hosts 2").text()
    [data] = kernel.ok("%%mesh\nkept, world_size").displays
    assert data["text/plain"].splitlines()[-1] == "[3] (30, 4)"
    assert rows(kernel.ok("%mesh jobs")) == [["mesh0", "processes", "up", "2/2"]]


@pytest.mark.slow
def test_a_command_runs_on_the_host_of_a_rank(kernel):
    said = kernel.ok("%mesh shell 3 -- sh -c 'echo two words'").text()
    assert "two words\n" in said
    assert "false ended with code 1" in kernel.ok("%mesh shell 0 -- false").text()
    assert "nowhere ended with code 127" in kernel.ok("%mesh shell 0 -- nowhere").text()
    assert kernel.ok("%mesh shell 0").text() == (
        "the host of rank 0: it is this machine: open a terminal here\n"
    )


@pytest.mark.slow
def test_the_doctor_sees_each_host_also_a_busy_one(kernel):
    said = kernel.ok("%mesh doctor").text()
    assert re.search(r"ok  this machine, host 0 \S+, host 1 \S+: Python 3\S+, monarch_nb ", said)
    assert re.search(r"host 0 \S+, host 1 \S+: other hosts reach it by lo\n", said)
    busy = kernel.start("%%mesh 0\nimport time; print('started', flush=True); time.sleep(60)")
    kernel.until(lambda: "started" in busy.text())
    kernel.stop_s(busy)
    kernel.ok("%%mesh --noblock -o job 0\nimport time; time.sleep(60)")
    kernel.ok("import monarch_nb.control.doctor as doctor; doctor.ANSWER_S = 0.5")
    said = kernel.ok("%mesh doctor", timeout_s=10).text()
    assert "!   host 0: no answer within 0.5 s\n    -> %mesh status shows why" in said
    kernel.ok("%mesh interrupt")


@pytest.mark.slow
def test_hosts_of_a_mesh_that_python_has_stopped_are_given_back(kernel):
    before = {pid for pid in descendants(kernel.manager.provisioner.pid) if is_running(pid)}
    kernel.ok("%mesh up --on processes --hosts 2 gpus=1 --name other", timeout_s=60)
    more = descendants(kernel.manager.provisioner.pid) - before
    kernel.ok("other.stop().get()")
    assert kernel.ok("%mesh jobs").shown.count("processes") == 2
    assert kernel.ok("%mesh down other").text() == "the hosts of other are given back\n"
    eventually(lambda: not any(map(is_running, more)))
    assert kernel.ok("%mesh jobs").shown.count("processes") == 1


@pytest.mark.slow
def test_stop_while_ranks_start_leaves_no_host(kernel):
    before = {pid for pid in descendants(kernel.manager.provisioner.pid) if is_running(pid)}
    cell = kernel.start("%mesh up --on processes --hosts 2 gpus=3 --name late")
    kernel.until(lambda: "starting ranks" in cell.shown)
    more = descendants(kernel.manager.provisioner.pid) - before
    kernel.stop_s(cell)
    assert cell.shown.startswith(
        "2/2 hosts -> starting ranks -> cancelled\nKeyboardInterrupt: late"
    )
    eventually(lambda: not any(map(is_running, more)))


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("end", ["shutdown_kernel", "restart_kernel", "killed"])
def test_the_end_of_the_kernel_leaves_nothing(end):
    with KernelClient("monarch") as client:
        client.ok("%mesh up --on processes --hosts 2 gpus=1", timeout_s=60)
        below = descendants(client.manager.provisioner.pid)
        assert len(below) > 6
        if end == "killed":
            client.manager.shutdown_kernel(now=True)
        else:
            getattr(client.manager, end)()
        eventually(lambda: not any(map(is_running, below)))
    if end == "restart_kernel":
        sweep_all()  # the second one was killed as it got ready, maybe before its agent was there
