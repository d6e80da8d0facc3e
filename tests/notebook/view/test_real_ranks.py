"""The mesh view over a kernel with real ranks: what a page is told of what they do."""

import base64
import json
import time
import uuid

import pytest

from tests.kernel.client import KernelClient
from tests.notebook.prompts import Prompt
from tests.notebook.view.browser.test_comm import Page
from tests.notebook.view.browser.test_messages import HELLO, v1
from tests.notebook.view.fake_browser import Browser, check

ACTOR = """
from monarch_nb import Actor, endpoint
class Trainer(Actor):
    @endpoint
    def step(self, n):
        import time
        print("step", n, flush=True)
        time.sleep(n)
    @endpoint
    def fail(self):
        raise ValueError("no batch")
trainers = mesh0.spawn("trainers", Trainer)
trainers.step.call(0).get();
"""


class Watcher(Page):
    """A page that keeps a model, and asks."""

    def __init__(self, kernel, period_ms=100):
        super().__init__(kernel)
        self.name, self.model, self.applied, self.key = uuid.uuid4().hex, Browser(), 0, 0
        parts = ["strips", "curves", "failures", "actors"]
        self.say(v1(HELLO, **{"from": self.name, "parts": parts, "period_ms": period_ms}))
        self.until(lambda: "mesh0" in self.model.meshes)

    @property
    def mesh(self):
        return self.model.meshes["mesh0"]

    def until(self, holds, timeout_s=20.0):
        def updated():
            for message in self.messages("state", "delta")[self.applied :]:
                self.model.apply(message)
                self.applied += 1
            return holds()

        return self.kernel.until(updated, timeout_s)

    def ask(self, what, **fields):
        self.key += 1
        message = {"v": 1, "type": "ask", "from": self.name, "id": self.key, "what": what}
        self.say({**message, **fields})
        [answer] = self.kernel.until(
            lambda: [m for m in self.messages("answer") if m["id"] == self.key]
        )
        check(answer)
        return answer["value"] if answer["ok"] else answer["error"]


FIRST_CELLS = ["%mesh up --gpus 2", ACTOR]


@pytest.fixture
def page(kernel):
    made = Watcher(kernel)
    yield made
    made.close()


def test_a_page_sees_what_ranks_do_while_the_kernel_waits_for_them(kernel, page):
    cell = kernel.start("%%mesh\nimport time; time.sleep(60)")
    page.until(lambda: {page.mesh["rows"][rank][0] for rank in (0, 1)} == {"busy"})
    assert "In[" in page.mesh["rows"][0][1]
    assert page.mesh["rows"][0][3] > 0, "since when"
    seconds = page.model.seconds
    page.until(lambda: page.model.seconds > seconds + 1)
    assert set(page.mesh["strips"][0]) & set("0123456789")
    kernel.stop_s(cell)
    page.until(lambda: {page.mesh["rows"][rank][0] for rank in (0, 1)} == {"idle"})
    assert all(isinstance(pid, int) for pid in page.mesh["pids"])
    page.until(lambda: page.mesh["usage"].get(("rss", 1)))


def test_failures_and_actors_come_by_themselves(kernel, page):
    assert "ValueError" in kernel.run("trainers.fail.call().get()").error
    # the ranks are asked one by one, and what the first has told is shown at once
    page.until(lambda: [each["ranks"] for each in page.mesh.get("failures", ())] == ["0-1"])
    [failure] = page.mesh["failures"]
    assert failure["headline"] == "ValueError: no batch"
    assert "line" in failure["where"]
    whole = page.ask("failure", mesh="mesh0", failure=failure["id"])
    assert 'raise ValueError("no batch")' in whole["text"]
    page.until(lambda: [a for a in page.mesh["actors"] if a["name"] == "trainers" and a["calls"]])
    about = page.ask("rank", mesh="mesh0", rank=1)
    assert [actor["cls"] for actor in about["actors"]] == ["Trainer"]
    assert about["error"]["headline"] == "ValueError: no batch"
    assert "step 0" in about["lines"]


def test_curves_and_lines_come_as_they_are_written(kernel, page):
    page.say({"v": 1, "type": "follow", "from": page.name, "mesh": "mesh0", "ranks": "1",
              "on": True, "after": None})  # fmt: skip
    page.ask("cell", number=0)
    kernel.ok(
        "%%mesh\nimport monarch_nb\n"
        "for step in range(3): monarch_nb.log(step, loss=step + rank)\nprint('said', rank)"
    )
    page.until(lambda: [p[0] for p in page.mesh["curves"].get("loss", ())] == [0, 1, 2])
    page.until(lambda: page.mesh["curves"]["loss"][0] == [0, 0.5, 0, 1, 2])
    assert page.ask("curve", mesh="mesh0", name="loss", rank=1)["points"][2] == [2, 3.0]
    page.until(lambda: page.messages("log"))
    lines = [line[2:6] for log in page.messages("log") for line in log["lines"]]
    assert [1, "stdout", "", "said 1"] in lines
    assert all(line[0] == 1 for line in lines)
    logs = page.ask("logs", mesh="mesh0", ranks=None, count=50, pattern="said [01]", level="")
    assert {line[5] for line in logs["lines"]} == {"said 0", "said 1"}
    assert all(0 <= time.time() - line[6] / 1000 < 60 for line in logs["lines"])


def test_runs_are_kept_beside_each_other_and_are_a_table(kernel, page):
    kernel.ok(
        "%%mesh\nimport monarch_nb\nfor lr in (0.5, 0.25):\n    monarch_nb.run(f'lr={lr}')\n"
        "    for step in range(3): monarch_nb.log(step, err=lr + rank)"
    )

    def earlier():
        runs = page.mesh.get("runs", {}).values()
        return [run["curves"]["err"] for run in runs if run["name"] == "lr=0.5" and run["curves"]]

    page.until(lambda: [points[0] for points in earlier()] == [[0, 1.0, 0.5, 1.5, 2]])
    page.until(lambda: [p[1] for p in page.mesh["curves"]["err"]] == [0.75] * 3)
    table = page.ask("metrics", mesh="mesh0", name="err")
    lines = table["csv"].splitlines()
    assert (len(lines), table["left_out"]) == (1 + 2 * 2 * 3, 0)
    assert lines[0] == "run,run_number,name,rank,step,value"
    assert [line for line in lines if line.startswith("lr=0.25")][-1].endswith(",err,1,2,1.25")
    said = kernel.ok("print(len(mesh0.metrics().query('name == \"err\" and rank == 1')))").text()
    assert "6" in said


def test_the_picture_of_a_mesh_has_its_curves_and_what_ranks_did(kernel, page):
    """As a saved or exported notebook shows it. Seconds are known while somebody looks."""
    kernel.ok(
        "%%mesh\nimport time, monarch_nb\n"
        "for i in range(5): monarch_nb.log(step=i, height=1.0 / (i + 1 + rank)); time.sleep(0.5)"
    )

    def shown():
        data = kernel.ok("mesh0").displays[-1]
        is_whole = "height: 0.1833 at step 4, of ranks 0.1667 to 0.2" in data["text/plain"]
        return data if is_whole and "s, how busy:" in data["text/plain"] else None

    page = kernel.until(shown)["text/html"]
    assert "<title>height: 0.1667 to 1, steps 0 to 4</title>" in page
    assert "s of each rank, how busy</title>" in page


def test_stacks_of_busy_ranks(kernel, page):
    cell = kernel.start("trainers.step.call(60).get()")
    page.until(lambda: {page.mesh["rows"][rank][0] for rank in (0, 1)} == {"busy"})

    def stacks():
        told = page.ask("stacks", mesh="mesh0", ranks="0-1")
        return [each["text"] for each in told["stacks"]]

    page.until(lambda: len(stacks()) == 1 and "time.sleep(n)" in stacks()[0])  # of both alike
    kernel.stop_s(cell)


def test_tensors_of_busy_ranks_are_looked_into_and_nothing_else_of_them_travels(kernel, page):
    cell = kernel.start(
        "%%mesh\nimport numpy, time\nbig = numpy.zeros((5000, 2000), 'f4')\n"
        "big[4000:, 1000:] = 1 + rank\nbig[0, 0] = numpy.nan\nwords = ['a']\ntime.sleep(60)"
    )

    def told():
        variables = page.ask("variables", mesh="mesh0")["variables"]
        return {each["name"]: each for each in variables}

    page.until(lambda: "words" in told() and not told()["words"]["missing"])
    [group] = told()["big"]["groups"]
    assert (group["ranks"], group["shape"], group["bytes"]) == ("0-1", [5000, 2000], 40_000_000)
    assert group["values"] == [], "nobody has asked what is in it"
    [whole] = page.ask("variables", mesh="mesh0", name="big")["variables"]
    assert [each["is"] for each in whole["groups"][0]["values"]] == [
        "0 to 1, mean 0.1, 1 NaN",
        "0 to 2, mean 0.2, 1 NaN",
    ]
    of_one = {"mesh": "mesh0", "rank": 1, "name": "big", "indices": []}
    window = page.ask("window", **of_one, row=3990, column=990)
    assert (len(window["numbers"]), len(window["numbers"][0])) == (200, 50)
    assert (window["numbers"][9], window["numbers"][10]) == (["0"] * 50, ["0"] * 10 + ["2"] * 40)
    image = page.ask("picture", **of_one)
    assert (image["rows"], image["columns"], image["each"]) == (250, 250, [20, 8])
    assert (image["least"], image["greatest"]) == (0.0, 2.0)
    dots = base64.b64decode(image["dots"])
    assert (dots[0], dots[1], dots[200 * 250 + 124], dots[200 * 250 + 125]) == (255, 0, 0, 254)
    assert max(len(json.dumps(each)) for each in page.messages("answer")) < 100_000
    sorry = page.ask("picture", **{**of_one, "name": "words"})
    assert sorry.startswith("rank 1: words is a list; only tensors and arrays")
    sorry = page.ask("window", **{**of_one, "name": "gone"}, row=0, column=0)
    assert sorry == "rank 1: this rank has no variable 'gone'"
    kernel.stop_s(cell)


def test_who_looks_once_a_second_sees_at_once_that_ranks_stop_at_a_breakpoint(kernel):
    page = Watcher(kernel, period_ms=1000)
    kernel.ok("%%mesh\nrank")  # what has failed before is not the state of the ranks any more
    late_s = 0.0

    def wait(state):
        began = time.monotonic()
        page.until(lambda: {page.mesh["rows"][rank][0] for rank in (0, 1)} == {state})
        return time.monotonic() - began

    wait("idle")
    for _ in range(3):
        with Prompt(kernel, "%%mesh\nbreakpoint()\nrank") as prompt:
            assert prompt.at() == "(rank 0) "
            late_s += wait("paused")
            prompt.reply("continue")
        late_s += wait("idle")
    page.close()
    print(f"of six changes, together: {late_s:.2f} s late")
    assert late_s < 2.0


def test_the_current_mesh_is_that_of_the_last_magic_or_button(kernel, page):
    assert page.model.top["current"] == "mesh0"
    kernel.ok("%mesh up --gpus 1 --name other", timeout_s=50)
    page.until(lambda: page.model.top["current"] == "other")
    assert page.ask("use", type="do", mesh="mesh0")["said"] == "%%mesh now means mesh0"
    page.until(lambda: page.model.top["current"] == "mesh0")
    kernel.ok("%mesh use other\n%mesh down other")
    page.until(lambda: "other" not in page.model.meshes)
    assert page.model.top["current"] == "mesh0"


def test_of_meshes_with_one_name_the_newest_is_listed_and_asked(kernel, page):
    kernel.ok("from monarch_nb import this_host\n"
              "twins = [this_host().spawn_procs({'gpus': size}, name='twin') for size in (1, 2)]\n"
              "[twin.initialized.get() for twin in twins]; pass")  # fmt: skip
    page.until(lambda: "twin" in page.model.meshes)
    page.until(lambda: page.model.meshes["twin"]["sizes"] == [2])
    page.until(lambda: page.model.meshes["twin"]["rows"][1][0] == "idle")
    assert page.ask("rank", mesh="twin", rank=1)["state"] == "idle"
    kernel.ok("twins[1].stop().get()")
    page.until(lambda: page.model.meshes["twin"]["sizes"] == [1])
    kernel.ok("twins[0].stop().get()")


@pytest.mark.fault
def test_a_rank_that_dies_is_seen_and_a_page_of_a_dead_mesh_is_told():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2", timeout_s=50)
        page = Watcher(kernel)
        kernel.ok("%mesh interrupt --kill 1")
        page.until(lambda: page.mesh["rows"][1][0] == "exited")
        about = page.ask("rank", mesh="mesh0", rank=1)
        assert (about["state"], about["actors"]) == ("exited", [])
        kernel.ok("%mesh down")
        page.until(lambda: page.model.meshes.get("mesh0", {"ended": "gone"})["ended"])
        page.close()
