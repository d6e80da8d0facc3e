"""What buttons do: the same as the magics, from a thread of their own, and said under no cell."""

import re
import threading

import pytest

from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.notebook.extension import load_ipython_extension
from monarch_nb.notebook.session import session_of
from monarch_nb.notebook.view.answers import actions
from monarch_nb.notebook.view.answers.pending_requests import answer_of
from monarch_nb.notebook.view.browser.protocol import parse
from tests.notebook.fake_client import FakeJob, install
from tests.notebook.view.browser.test_comm import Page
from tests.support import eventually

FIRST_CELLS = ["import time, os"]
OFFER = r"\. %mesh replay [\d,-]+ --ranks [\d,]+ runs there what cells have defined"


def do(session, what, **fields):
    """The answer that a browser gets."""
    message = parse({"v": 1, "type": "do", "from": "a", "id": 1, "what": what, **fields})
    known = session.control, session.link, session.lifecycle, session.debugging, session.scaling
    parts = actions.Parts(*known)
    return answer_of(("a", 1), lambda: actions.perform(parts, message))


@pytest.fixture
def session(shell):
    load_ipython_extension(shell)
    install(shell)
    return session_of(shell)


def up(session, line="gpus=4"):
    return do(session, "up", line=f"{line} --new")


def test_up_gives_a_current_mesh_with_a_variable(session):
    said = up(session)["value"]["said"]
    assert said.startswith("mesh0 is up: 4 ranks (gpus=4) in ")
    assert session.meshes.current == "mesh0"
    assert session.shell.user_ns["mesh0"].name == "mesh0"
    assert up(session, "hosts=2 --name other")["ok"]
    assert session.meshes.current == "other"


def test_what_cannot_be_brought_up_is_a_sentence(session):
    up(session)
    taken = up(session, "gpus=4 --name mesh0")["error"]
    assert taken.startswith("A mesh named 'mesh0' is up already.")
    many = up(session, "hosts=100 gpus=100")["error"]
    assert many == "%mesh up: starts 4096 ranks at most, not 10000. Type: %mesh up --gpus 4"
    assert up(session, "gpus=4 --device cuda")["error"] == (
        "this host has no GPU that a rank could use. Type: --device cpu"
    )
    assert up(session, "'gpus=4")["error"].startswith("%mesh up: No closing quotation.")
    assert up(session, "gpus=4 --name print")["error"].startswith(
        "%mesh up: --name must be another word, print is Python's own."
    )
    assert up(session, "gpus=4 --on nowhere")["error"].startswith(
        "There is no engine or profile 'nowhere'."
    )


def test_two_at_once_get_two_names(session):
    with session.meshes.new_name(None) as first, session.meshes.new_name(None) as second:
        assert (first, second) == ("mesh0", "mesh1")
    with session.meshes.new_name(None) as third:
        assert third == "mesh0"


def test_stale_clicks_are_answered_by_sentences(session):
    for what in ("heal", "down", "use"):
        assert do(session, what, mesh="gone")["error"] == "there is no mesh 'gone' any more"
    up(session)
    for what in ("kill", "restart", "interrupt"):
        error = do(session, what, mesh="mesh0", ranks="3-5")["error"]
        assert error == "mesh0 has no ranks 4-5; its ranks are 0-3"


def test_use_and_down(session):
    up(session)
    up(session, "gpus=4 --name other")
    assert do(session, "use", mesh="mesh0")["value"]["said"] == "%%mesh now means mesh0"
    assert session.meshes.current == "mesh0"
    assert do(session, "down", mesh="mesh0")["value"]["said"] == "mesh0 is down"
    assert session.meshes.current == "other"
    assert "mesh0" not in session.shell.user_ns


def test_kill_takes_these_ranks_and_interrupt_finds_nothing(session):
    up(session)
    assert "rank 2 killed" in do(session, "kill", mesh="mesh0", ranks="2")["value"]["said"]
    assert session.control.killed == [2]
    said = do(session, "interrupt", mesh="mesh0", ranks="1")["value"]["said"]
    assert said.startswith("mesh0: rank 1: nothing to interrupt.")


# ------------------------------------------------------------------------------ hosts of engines


ON = "gpus=2 --on slurm --hosts 2"
QUEUED = JobStatus("slurm", Stage.QUEUED, 0, 2, id="7", reason="Priority")
JOINING = JobStatus("slurm", Stage.JOINING, 1, 2, id="7")
ALL_UP = JobStatus("slurm", Stage.UP, 2, 2, id="7", ends_at=1e10)


@pytest.fixture
def jobs(session, monkeypatch):
    """What the panel shows of jobs; what a `FakeJob` tells is put into `jobs.statuses`."""
    monkeypatch.setattr(FakeJob, "statuses", [QUEUED])
    monkeypatch.setattr(FakeJob, "events", [])
    monkeypatch.setattr(FakeJob, "least", None)
    return session.jobs


def until_one(jobs, state, said):
    def found():
        return [each for each in jobs.seen() if (each.state, each.said) == (state, said)]

    [one] = eventually(found, 10, f"{state}: {said}, of {jobs.seen()}")
    return one


def test_a_button_asks_for_hosts_and_the_panel_says_how_far_they_are(session, jobs):
    assert up(session, ON)["value"]["said"] == "slurm is asked for hosts"
    coming = until_one(jobs, "coming", "queued (Priority)")
    assert (coming.mesh, coming.engine, coming.id, coming.hosts) == ("mesh0", "slurm", "7", 2)
    assert (coming.enough, coming.ends_at) == (0, None)
    FakeJob.statuses.append(ALL_UP)
    eventually(lambda: session.meshes.current == "mesh0", 10)
    [there] = jobs.seen()
    assert there.said.startswith("queued (Priority) -> 2/2 hosts -> ranks up in ")
    assert (there.state, there.ends_at) == ("up", 1e10)
    error = do(session, "cancel", job=there.number)["error"]
    assert error == "mesh0 is up. Type: %mesh down mesh0"
    assert do(session, "down", mesh="mesh0")["ok"]
    assert jobs.seen() == ()


def test_hosts_that_are_not_wanted_any_more_are_given_back_and_nothing_is_said(session, jobs):
    up(session, ON)
    coming = until_one(jobs, "coming", "queued (Priority)")
    said = do(session, "cancel", job=coming.number)["value"]["said"]
    assert said == "mesh0 is cancelled: its hosts are given back"
    assert jobs.seen() == ()
    assert FakeJob.events[:2] == ["apply slurm", "kill"]
    assert do(session, "cancel", job=coming.number)["error"] == "it is not there any more"
    eventually(lambda: not [each for each in threading.enumerate() if "hosts" in each.name], 10)
    assert jobs.seen() == ()


def test_hosts_that_do_not_come_are_told_until_somebody_has_seen_it(session, jobs):
    FakeJob.statuses.append(JobStatus("slurm", Stage.GONE, 0, 2, id="7", reason="node2: no"))
    up(session, ON)
    failed = until_one(jobs, "failed", "mesh0 was not started: node2: no")
    assert do(session, "cancel", job=failed.number)["ok"]
    assert jobs.seen() == ()


def test_a_button_goes_on_with_the_hosts_that_are_enough(session, jobs, monkeypatch):
    monkeypatch.setattr(FakeJob, "least", 1)
    up(session, f"{ON} --min-hosts 1")
    coming = until_one(jobs, "coming", "queued (Priority)")
    assert do(session, "settle", job=coming.number)["error"] == (
        "mesh0 has too few hosts to go on with"
    )
    FakeJob.statuses.append(JOINING)
    until_one(jobs, "coming", "queued (Priority) -> 1/2 hosts")
    [coming] = jobs.seen()
    assert coming.enough == 1
    assert do(session, "settle", job=coming.number)["ok"]
    eventually(lambda: session.meshes.current == "mesh0", 10)
    assert "settle" in FakeJob.events


def test_a_button_has_a_mesh_on_more_hosts_or_leaves_it_as_it_is(session, jobs):
    FakeJob.statuses[:] = [ALL_UP]
    up(session, ON)
    eventually(lambda: session.meshes.current == "mesh0", 10)
    FakeJob.statuses.append(JOINING._replace(joined=2, hosts=3))
    assert (
        do(session, "scale", mesh="mesh0", hosts=3)["value"]["said"] == "mesh0 is asked for hosts"
    )
    scaling = until_one(jobs, "scaling", "2/3 hosts")
    assert do(session, "cancel", job=scaling.number)["value"]["said"] == "mesh0 stays as it is"
    until_one(jobs, "up", "2/3 hosts -> cancelled")
    assert FakeJob.events == ["apply slurm", "scale 3", "scale 2"]
    FakeJob.statuses.append(ALL_UP._replace(joined=3, hosts=3))
    do(session, "scale", mesh="mesh0", hosts=3)
    eventually(lambda: len(session.meshes.pick("mesh0")) == 6, 10)
    assert do(session, "scale", mesh="mesh0", hosts=1)["ok"]
    eventually(lambda: len(session.meshes.pick("mesh0")) == 2, 10)
    assert len(jobs.seen()) == 1


def test_a_mesh_of_this_machine_cannot_be_scaled(session, jobs):
    up(session)
    error = do(session, "scale", mesh="mesh0", hosts=3)["error"]
    assert error == "mesh0 has no hosts of its own: its ranks are on this machine"


def test_so_many_meshes_wait_for_hosts_at_most(session, jobs):
    for _ in range(actions.MAX_COMING):
        up(session, ON)
    eventually(lambda: len(jobs.seen()) == actions.MAX_COMING, 10)
    assert up(session, ON)["error"] == "8 meshes wait for hosts already. Cancel one, or wait"
    for each in jobs.seen():
        do(session, "cancel", job=each.number)


# ------------------------------------------------------------------------------- real processes


class Buttons(Page):
    """Presses buttons, and waits for what they say."""

    key = 0

    def press(self, what, **fields):
        self.key += 1
        message = {"v": 1, "type": "do", "from": self.id, "id": self.key, "what": what, **fields}
        self.say(message)
        return self.key

    def said(self, key):
        def answer():
            return [m for m in self.messages("answer") if m["id"] == key]

        [found] = self.kernel.until(answer, 50.0)
        return found["value"]["said"] if found["ok"] else found["error"]

    def do(self, what, **fields):
        return self.said(self.press(what, **fields))


@pytest.fixture
def buttons(kernel):
    made = Buttons(kernel)
    yield made
    kernel.run("%mesh down --all")
    made.close()


def test_a_mesh_of_a_button_is_as_one_of_the_magic(kernel, buttons):
    said = buttons.do("up", line="gpus=2 --device cpu")
    assert said.startswith("mesh0 is up: 2 ranks (gpus=2) in ")
    cell = kernel.ok("%%mesh\nimport os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), device)")
    assert cell.text() == "[0-1] '' cpu\n"
    assert kernel.ok("mesh0.name").displays == [{"text/plain": "'mesh0'"}]
    assert buttons.do("up", line="gpus=1 --name mesh0 --new").startswith(
        "A mesh named 'mesh0' is up already."
    )
    assert buttons.do("down", mesh="mesh0") == "mesh0 is down"
    assert "No mesh is up" in kernel.ok("%mesh list").text()


def test_a_mesh_comes_up_while_a_cell_blocks_and_its_stop_is_not_the_mesh_s(kernel, buttons):
    cell = kernel.start("import time; time.sleep(30)")
    kernel.until(lambda: cell.contents("execute_input"))
    key = buttons.press("up", line="gpus=2 --name side")
    kernel.until(lambda: kernel.has_come("status", buttons.sent[-1], "idle"))
    kernel.interrupt()
    assert buttons.said(key).startswith("side is up")
    assert "KeyboardInterrupt" in kernel.finish(cell).error
    assert cell.text() + cell.text("stderr") == ""
    assert kernel.ok("%%mesh @side\nprint(rank)").text() == "[0] 0\n[1] 1\n"


@pytest.mark.fault
def test_ranks_that_are_busy_are_interrupted_killed_and_restarted(kernel, buttons):
    buttons.do("up", line="gpus=3 --name mesh0")
    cell = kernel.start("%%mesh\nimport time\nif rank == 1: print('at work'); time.sleep(30)")
    kernel.until(lambda: "at work" in cell.text())
    assert buttons.do("interrupt", mesh="mesh0", ranks="1") == "mesh0: rank 1: interrupted"
    assert "rank 1 was interrupted at" in kernel.finish(cell).error
    kernel.ok("%%mesh\nkept = rank")
    cell = kernel.start("%%mesh\nif rank == 1: print('at work')\nwhile rank == 1: pass")
    kernel.until(lambda: "at work" in cell.text())
    said = buttons.do("restart", mesh="mesh0", ranks="1")
    assert re.fullmatch(f"mesh0: rank 1 started again, with an empty namespace{OFFER}", said)
    assert "rank 1" in kernel.finish(cell).error
    have = kernel.ok("%%mesh\nprint('kept' in globals())")
    assert have.text() == "[0,2] True\n[1] False\n"
    said = buttons.do("kill", mesh="mesh0", ranks="0,2")
    assert said == "mesh0: ranks 0,2 killed. %mesh heal starts them again"
    known = "print(sorted(mesh0._state.lost))"
    kernel.until(lambda: kernel.ok(known).text() == "[0, 2]\n")
    assert re.fullmatch(
        r"mesh0 is whole again: 3 ranks \(gpus=3\); ranks 0,2 started again, with empty "
        f"namespaces{OFFER}",
        buttons.do("heal", mesh="mesh0"),
    )


def test_the_magic_takes_a_device_too(kernel, buttons):
    kernel.ok("%mesh up --gpus 2 --device cpu")
    cell = kernel.ok("%%mesh\nimport os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), device)")
    assert cell.text() == "[0-1] '' cpu\n"
    assert (
        "--device must be auto, cpu or cuda" in kernel.run("%mesh up --gpus 2 --device tpu").error
    )
