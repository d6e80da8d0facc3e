"""What buttons do: the same as the magics, from a thread of their own, and said under no cell."""

import pytest

from monarch_nb.notebook.extension import load_ipython_extension
from monarch_nb.notebook.session import session_of
from monarch_nb.notebook.view.answers import actions
from monarch_nb.notebook.view.answers.pending_requests import answer_of
from monarch_nb.notebook.view.browser.protocol import parse
from tests.notebook.fake_client import install
from tests.notebook.view.browser.test_comm import Page

FIRST_CELLS = ["import time, os"]


def do(session, what, **fields):
    """The answer that a browser gets."""
    message = parse({"v": 1, "type": "do", "from": "a", "id": 1, "what": what, **fields})
    parts = actions.Parts(session.control, session.link, session.lifecycle, session.debugging)
    return answer_of(("a", 1), lambda: actions.perform(parts, message))


@pytest.fixture
def session(shell):
    load_ipython_extension(shell)
    install(shell)
    return session_of(shell)


def up(session, name="", device="auto", **sizes):
    return do(session, "up", sizes=sizes or {"gpus": 4}, name=name, device=device)


def test_up_gives_a_current_mesh_with_a_variable(session):
    said = up(session)["value"]["said"]
    assert said.startswith("mesh0 is up: 4 ranks (gpus=4) in ")
    assert session.meshes.current == "mesh0"
    assert session.shell.user_ns["mesh0"].name == "mesh0"
    assert up(session, name="other", hosts=2)["ok"]
    assert session.meshes.current == "other"


def test_what_cannot_be_brought_up_is_a_sentence(session):
    up(session)
    assert up(session, name="mesh0")["error"].startswith("A mesh named 'mesh0' is up already.")
    assert up(session, hosts=100, gpus=100)["error"] == "4096 ranks at most are started, not 10000"
    assert up(session, device="cuda")["error"] == (
        "this host has no GPU that a rank could use. Type: --device cpu"
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
    up(session, name="other")
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
    said = buttons.do("up", sizes={"gpus": 2}, name="", device="cpu")
    assert said.startswith("mesh0 is up: 2 ranks (gpus=2) in ")
    cell = kernel.ok("%%mesh\nimport os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), device)")
    assert cell.text() == "[0-1] '' cpu\n"
    assert kernel.ok("mesh0.name").displays == [{"text/plain": "'mesh0'"}]
    assert buttons.do("up", sizes={"gpus": 1}, name="mesh0", device="auto").startswith(
        "A mesh named 'mesh0' is up already."
    )
    assert buttons.do("down", mesh="mesh0") == "mesh0 is down"
    assert "No mesh is up" in kernel.ok("%mesh list").text()


def test_a_mesh_comes_up_while_a_cell_blocks_and_its_stop_is_not_the_mesh_s(kernel, buttons):
    cell = kernel.start("import time; time.sleep(30)")
    kernel.until(lambda: cell.contents("execute_input"))
    key = buttons.press("up", sizes={"gpus": 2}, name="side", device="auto")
    kernel.until(lambda: kernel.has_come("status", buttons.sent[-1], "idle"))
    kernel.interrupt()
    assert buttons.said(key).startswith("side is up")
    assert "KeyboardInterrupt" in kernel.finish(cell).error
    assert cell.text() + cell.text("stderr") == ""
    assert kernel.ok("%%mesh @side\nprint(rank)").text() == "[0] 0\n[1] 1\n"


@pytest.mark.fault
def test_ranks_that_are_busy_are_interrupted_killed_and_restarted(kernel, buttons):
    buttons.do("up", sizes={"gpus": 3}, name="mesh0", device="auto")
    cell = kernel.start("%%mesh\nimport time\nif rank == 1: print('at work'); time.sleep(30)")
    kernel.until(lambda: "at work" in cell.text())
    assert buttons.do("interrupt", mesh="mesh0", ranks="1") == "mesh0: rank 1: interrupted"
    assert "rank 1 was interrupted at" in kernel.finish(cell).error
    kernel.ok("%%mesh\nkept = rank")
    cell = kernel.start("%%mesh\nif rank == 1: print('at work')\nwhile rank == 1: pass")
    kernel.until(lambda: "at work" in cell.text())
    said = buttons.do("restart", mesh="mesh0", ranks="1")
    assert said == "mesh0: rank 1 started again, with an empty namespace"
    assert "rank 1" in kernel.finish(cell).error
    have = kernel.ok("%%mesh\nprint('kept' in globals())")
    assert have.text() == "[0,2] True\n[1] False\n"
    said = buttons.do("kill", mesh="mesh0", ranks="0,2")
    assert said == "mesh0: ranks 0,2 killed. %mesh heal starts them again"
    known = "print(sorted(mesh0._state.lost))"
    kernel.until(lambda: kernel.ok(known).text() == "[0, 2]\n")
    assert buttons.do("heal", mesh="mesh0") == (
        "mesh0 is whole again: 3 ranks (gpus=3); ranks 0,2 started again, with empty namespaces"
    )


def test_the_magic_takes_a_device_too(kernel, buttons):
    kernel.ok("%mesh up --gpus 2 --device cpu")
    cell = kernel.ok("%%mesh\nimport os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), device)")
    assert cell.text() == "[0-1] '' cpu\n"
    assert (
        "--device must be auto, cpu or cuda" in kernel.run("%mesh up --gpus 2 --device tpu").error
    )
