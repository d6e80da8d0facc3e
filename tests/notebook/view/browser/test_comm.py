"""The mesh view over real kernels: while cells run, beside them, and without disturbing them."""

import statistics
import time
import uuid

import pytest

from tests.kernel.client import KernelClient
from tests.notebook.view.browser.test_messages import HELLO, v1
from tests.notebook.view.fake_browser import Browser
from tests.support import code_until

FAKE = """
%load_ext monarch_nb
from tests.notebook.view.fake_source import install
fake = install(get_ipython())
fake.mesh("mesh0", hosts=8, gpus=8);
"""
THREADS = "import threading; print(*[t.name for t in threading.enumerate() if 'live' in t.name])"


class Page:
    """JupyterLab, as far as the mesh view sees it: a comm, over a subshell if there is one."""

    def __init__(self, kernel, subshell=True):
        self.kernel, self.id, self.sent = kernel, uuid.uuid4().hex, []
        self.told, self.read = [], len(kernel.others)
        self.subshell = self._subshell() if subshell else None
        self._send("comm_open", {"target_name": "monarch_nb.mesh", "data": {}})

    def _subshell(self):
        asked = self.kernel.control("create_subshell_request", {})
        self.kernel.until(lambda: self.kernel.has_come("create_subshell_reply", asked))
        replies = [m for m in self.kernel.others if m["msg_type"] == "create_subshell_reply"]
        return replies[-1]["content"]["subshell_id"]

    def _send(self, kind, content):
        client = self.kernel.client
        message = client.session.msg(kind, {"comm_id": self.id, **content})
        if self.subshell is not None:
            message["header"]["subshell_id"] = self.subshell
        client.shell_channel.send(message)
        self.sent.append(message["header"]["msg_id"])

    def say(self, message):
        self._send("comm_msg", {"data": message})

    def close(self):
        self._send("comm_close", {"data": {}})

    def frames(self, kind="comm_msg"):
        return [
            m
            for m in self.kernel.others
            if m["msg_type"] == kind and m["content"].get("comm_id") == self.id
        ]

    def messages(self, *kinds):
        while self.read < len(self.kernel.others):
            message = self.kernel.others[self.read]
            self.read += 1
            if message["msg_type"] == "comm_msg" and message["content"]["comm_id"] == self.id:
                self.told.append(message["content"]["data"])
        return [message for message in self.told if message["type"] in kinds]

    def wait(self, *kinds, count=1):
        return self.kernel.until(lambda: self.messages(*kinds)[count - 1 :], 15.0)[-1]

    def hello(self, **changes):
        before = len(self.messages("state"))
        self.say(v1(HELLO, **changes))
        return self.wait("state", count=before + 1)


FIRST_CELLS = [FAKE]


@pytest.fixture
def page(kernel):
    made = Page(kernel)
    yield made
    made.close()
    kernel.until(lambda: kernel.ok(THREADS).text().split() == [])


def test_a_page_sees_the_mesh_while_a_cell_blocks(kernel, page, record_property):
    """State within 0.1 s, then at most ten deltas a second, none of them of any cell."""
    cell = kernel.start("import time; fake.flicker('mesh0', 2.0); time.sleep(2)")
    kernel.until(lambda: cell.contents("execute_input"))
    took = []
    for client in "abcde":
        asked = time.monotonic()
        page.hello(**{"from": client})
        took.append(time.monotonic() - asked)
        kernel.settle(0.02)
    record_property("state_ms", statistics.median(took) * 1000)
    print(f"state while a cell blocks: {statistics.median(took) * 1000:.1f} ms, {took}")
    assert statistics.median(took) < 0.1
    assert page.messages("state")[-1]["cell"]["number"] == kernel_count(cell)
    kernel.finish(cell)
    deltas = page.messages("delta")
    assert 5 < len(deltas) <= 25
    assert all(frame["parent_header"] == {} for frame in page.frames())
    model = Browser()
    for message in page.messages("state", "delta"):
        if message["type"] == "state" or model.n >= 0:
            model.apply(message)
    assert not cell.contents("comm_msg")


def kernel_count(cell):
    return cell.contents("execute_input")[0]["execution_count"]


def test_a_busy_kernel_still_looks_busy_when_a_page_has_spoken(kernel, page):
    page.hello()
    cell = kernel.start("import time; time.sleep(1)")
    kernel.until(lambda: cell.contents("execute_input"))
    page.say({"v": 1, "type": "ping", "from": "a"})
    kernel.until(lambda: kernel.has_come("status", page.sent[-1], "idle"))
    states = [c["execution_state"] for c in cell.contents("status")]
    kernel.until(lambda: [c["execution_state"] for c in cell.contents("status")] == ["busy"] * 2)
    assert states[0] == "busy"
    kernel.finish(cell)


def test_the_cell_is_known_by_the_id_of_its_page(kernel, page, tmp_path):
    cell = run_with_id(kernel, code_until(tmp_path / "seen"), "cell-of-lab")
    kernel.until(lambda: cell.contents("execute_input"))
    state = page.hello()
    number = kernel_count(cell)
    assert (state["cell"]["number"], state["cell"]["id"]) == (number, "cell-of-lab")
    (tmp_path / "seen").touch()
    kernel.finish(cell)
    kernel.until(lambda: any(m.get("cell", 0) is None for m in page.messages("delta")))


def test_pages_are_told_of_whose_end_a_person_wants_to_know(kernel, page, tmp_path):
    assert kernel.ok("%mesh watch").text().startswith("only a cell that runs in JupyterLab")
    page.hello()
    waiting = code_until(tmp_path / "seen")
    cell = run_with_id(kernel, f"%mesh watch\n{waiting}", "watched")

    def is_watched():
        cells = [delta.get("cell") for delta in page.messages("delta")]
        return [each["id"] for each in cells if each and each["watched"]]

    kernel.until(lambda: is_watched() == ["watched"])
    (tmp_path / "seen").touch()
    assert kernel.finish(cell).text() == "you will be told when this cell ends\n"

    (tmp_path / "seen").unlink()
    cell = run_with_id(kernel, "# the long one\n%mesh watch", "alone")
    assert kernel.finish(cell).text() == "you will be told when the next cell ends\n"
    cell = run_with_id(kernel, waiting, "next")
    kernel.until(lambda: is_watched() == ["watched", "next"])
    (tmp_path / "seen").touch()
    kernel.finish(cell)


def run_with_id(kernel, code, cell_id):
    from tests.kernel.client import Cell

    message = kernel.client.session.msg(
        "execute_request",
        {"code": code, "silent": False, "store_history": True, "user_expressions": {},
         "allow_stdin": True, "stop_on_error": True},
        metadata={"cellId": cell_id},
    )  # fmt: skip
    kernel.client.shell_channel.send(message)
    cell = kernel.cells[message["header"]["msg_id"]] = Cell(message["header"]["msg_id"])
    return cell


def test_malformed_messages_over_the_wire(kernel, page):
    for data in ({}, {"v": 9}, v1(HELLO, parts=7), {"v": 1, "type": "do", "from": "a", "id": 1}):
        page.say(data)
    page.wait("error", count=3)
    assert page.wait("answer")["error"].startswith("do: what must be one of")
    page.hello()


def test_a_stop_does_not_hurt_it(kernel, page):
    page.hello()
    work = "import time; print('running'); time.sleep(30)"
    cell = kernel.start(f"fake.flicker('mesh0', 3.0)\n{work}")
    kernel.until(lambda: "running" in cell.text())
    kernel.interrupt()
    assert "KeyboardInterrupt" in kernel.finish(cell).error
    count = len(page.messages("delta"))
    kernel.until(lambda: len(page.messages("delta")) > count + 3)


def test_messages_do_not_run_what_cells_run_at_their_end(kernel, page):
    """IPython's `post_execute` shows figures; a ping must not."""
    kernel.ok(
        "ran = []; get_ipython().events.register('post_execute', hook := lambda: ran.append(1))"
    )
    kernel.ok("ran.clear()")
    page.hello()
    page.say({"v": 1, "type": "ping", "from": "a"})
    page.hello()
    ends = kernel.ok("print(len(ran)); get_ipython().events.unregister('post_execute', hook)")
    assert ends.text() == "1\n"


def test_a_page_that_vanishes_is_forgotten_when_its_comm_closes(kernel):
    page = Page(kernel)
    page.hello()
    assert kernel.ok(THREADS).text() == "monarch-live\n"
    page.close()
    kernel.until(lambda: kernel.ok(THREADS).text() == "\n")


def test_over_the_main_shell_too(kernel):
    page = Page(kernel, subshell=False)
    assert len(page.hello()["meshes"]["mesh0"]["pids"]) == 64
    page.close()
    kernel.until(lambda: kernel.ok(THREADS).text() == "\n")


def test_our_kernel_announces_nothing(kernel):
    assert not [m for m in kernel.others if m["content"].get("target_name")]


def test_a_plain_kernel_announces_itself_once_it_is_loaded():
    with KernelClient("python3") as kernel:
        kernel.ok("1")
        assert listed(kernel) == []
        kernel.ok(FAKE)
        assert listed(kernel) == ["monarch_nb.announce"]
        [opened] = [m for m in kernel.others if m["msg_type"] == "comm_open"]
        assert opened["content"]["data"] == {"v": 1}
        close = {"comm_id": opened["content"]["comm_id"], "data": {}}
        kernel.client.shell_channel.send(kernel.client.session.msg("comm_close", close))
        assert listed(kernel) == ["monarch_nb.announce"], "the next page finds it all the same"
        page = Page(kernel)
        page.hello()
        kernel.ok("%unload_ext monarch_nb")
        kernel.until(lambda: page.frames("comm_close"))
        assert listed(kernel) == []
        assert kernel.ok(THREADS).text() == "\n"


def listed(kernel):
    asked = kernel.client.comm_info()
    kernel.until(lambda: kernel.has_come("comm_info_reply", asked))
    [reply] = [m for m in kernel.others if m["parent_header"].get("msg_id") == asked
               and m["msg_type"] == "comm_info_reply"]  # fmt: skip
    return [each["target_name"] for each in reply["content"]["comms"].values()]
