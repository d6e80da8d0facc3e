"""Meshes that outlive their kernel: killed, restarted, taken over; in real kernels."""

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from monarch_nb.control.keeping import kept_record
from monarch_nb.host.rundir import sweep_all
from tests import support
from tests.kernel.client import KernelClient

pytestmark = pytest.mark.slow

ACTOR = """from monarch_nb import Actor, endpoint

class Sum(Actor):
    def __init__(self, start):
        self.total = start
    @endpoint
    def add(self, n):
        self.total += n
        return self.total
    @endpoint
    def fail(self):
        raise ValueError("no batch")
"""
ACTORS = f"""{ACTOR}
sums = mesh0.spawn("sums", Sum, 10)
print(sums.add.call(1).get().values())
"""
COUNTS = """%%mesh --noblock -o work
import os, time
for i in range(500):
    print("line", i)
    time.sleep(0.002)
    while i == 400 and not os.path.exists({!r}):
        time.sleep(0.01)
rank * 100"""
GROUP = """%%mesh
import time, torch, torch.distributed as dist
from monarch_nb import log
dist.init_process_group("gloo")
def total():
    one = torch.ones(1)
    dist.all_reduce(one)
    return one"""
TRAIN = """%%mesh
for step in range(10_000):
    log(step, loss=step)
    total()
    print("step", step)
    time.sleep(0.02)"""
LOGS = COUNTS.replace("import os, time", "import os, time\nfrom monarch_nb import log").replace(
    'print("line", i)', 'print("line", i); log(i, loss=i)'
)
LATE = """
import threading
from monarch_nb.control import cells

class Late:
    def __init__(self, proc):
        self.proc = proc
    def __getattr__(self, name):
        return getattr(self.proc, name)
    def control_all(self, *sent, **options):
        threading.Timer(0.7, self.proc.control_all, sent, options).start()

resume = cells.CellRun.resume
def late(run, cell):
    run._proc = Late(run._proc)
    resume(run, cell)
cells.CellRun.resume = late"""
CURVES = """
table = mesh0.metrics()
steps = table.groupby("rank")["step"].agg(["min", "max"])
print(*table["run"].unique(), end=": ")
print(*(f"{rank} {low}-{high}" for rank, low, high in steps.itertuples()), sep=", ")"""
LINES = 500
LINE = re.compile(r"^\[([\d,-]+)\] line (\d+)$", re.MULTILINE)
END_S = 20.0


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Of this test alone: others would be offered its meshes. It leaves none, should it fail."""
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    yield
    for record in kept_record.all_records():
        record.end()


def kill(kernel: KernelClient) -> None:
    """End a kernel as a crash does."""
    pid = kernel.manager.provisioner.pid
    os.kill(pid, signal.SIGKILL)
    kernel.manager.provisioner.process.wait()


def lines_of(text: str) -> Counter[tuple[int, int]]:
    """How often each rank has said each line."""
    found: Counter[tuple[int, int]] = Counter()
    for ranks, number in LINE.findall(text):
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            found.update((rank, int(number)) for rank in range(int(first), int(last or first) + 1))
    return found


def ranks_of(kernel: KernelClient) -> list[int]:
    text = kernel.ok("%%mesh\nimport os; os.getpid()").text()
    displays = kernel.ok("%%mesh\nos.getpid()").shown
    return [int(each) for each in re.findall(r"\] (\d+)", displays or text)]


def test_a_kernel_is_killed_and_its_mesh_comes_back_with_the_cell_that_runs(tmp_path):
    told = tmp_path / "told"
    with KernelClient("monarch") as first:
        said = first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60).text()
        assert "kept for 60 min without the kernel" in said
        first.ok("%%mesh\nx = rank + 1")
        assert "[11, 11]" in first.ok(ACTORS).text()
        running = first.start(COUNTS.format(str(told)))
        first.until(lambda: "line 5" in running.text())
        kill(first)
    with KernelClient("monarch") as second:
        assert second.ok("1").shown.startswith(
            "mesh0 with 2 ranks is still there: %mesh attach mesh0\n"
        )
        listed = second.ok("%mesh list").text()
        assert "mesh0: gpus=2; kept for 60 min. %mesh attach mesh0" in listed
        assert re.search(r"2 ranks busy \(cell In\[4\]\) for .*; alone for .*, ends in 60", listed)
        attach = second.ok("%mesh attach")
        assert "mesh0 (2 ranks (gpus=2)) is back" in attach.text()
        assert "variables: mesh0, sums" in attach.text()
        assert "cell In[4] still runs on ranks 0-1" in attach.text()
        told.touch()
        assert "[0, 100]" in second.ok("cell4.result().values()").shown
        second.until(lambda: len(lines_of(attach.text())) == 2 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert "[0] 1\n[1] 2" in second.ok("%%mesh\nx").shown
        assert "[14, 14]" in second.ok("print(sums.add.call(3).get().values())").text()
        assert "no batch" in second.run("sums.fail.call().get()").error
        second.ok("%mesh down")


def test_a_cell_that_asks_is_answered_from_the_next_kernel():
    with KernelClient("monarch") as first:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        first.start("%%mesh 0\nname = input('who? ')\nprint('hello', name)", allow_stdin=True)
        assert first.asked() == "rank 0: who? "
        kill(first)
    with KernelClient("monarch") as second:
        attach = second.start("%mesh attach", allow_stdin=True)
        second.until(
            lambda: attach.text("stderr") == "rank 0 asks: who?\ncell2.wait() lets you answer\n"
        )
        waits = second.start("cell2.wait()", allow_stdin=True)
        assert second.asked(of=waits) == "rank 0: who? "
        second.answer("Ada")
        second.until(lambda: waits.reply is not None)
        second.until(lambda: "[0] hello Ada" in attach.text())
        second.ok("%mesh down")


def test_a_rank_that_is_stopped_is_debugged_from_the_next_kernel():
    with KernelClient("monarch") as first:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        first.start("%%mesh 1\nx = 21\nbreakpoint()\nx = x / 0", allow_stdin=True)
        assert first.asked() == "(rank 1) "
        kill(first)
    with KernelClient("monarch") as second:
        attach = second.start("%mesh attach", allow_stdin=True)
        second.until(lambda: "%mesh debug opens the prompt" in attach.text("stderr"))
        assert "rank 1 at Cell In[2]:4\n-> x = x / 0" in attach.text("stderr")
        debug = second.start("%mesh debug", allow_stdin=True)
        assert second.asked(of=debug) == "(rank 1) "
        second.answer("p x * 2")
        second.until(lambda: "42\n" in debug.text())
        assert second.asked(of=debug) == "(rank 1) "
        second.answer("continue")
        second.until(lambda: "ZeroDivisionError" in attach.text("stderr"))
        assert "  Cell In[2], line 4, in <module>\n    x = x / 0" in attach.text("stderr")
        second.until(lambda: debug.reply is not None)
        second.ok("%mesh down")


def test_what_failed_before_is_known_after():
    with KernelClient("monarch") as first:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        first.ok("%%mesh\ndef divide(x):\n    return x / (rank - 1)")
        before = first.run("%%mesh\ndivide(3)").error
        kill(first)
    with KernelClient("monarch") as second:
        told = second.ok("%mesh attach").text()
        assert (
            "cell In[3] had failed: rank 1: ZeroDivisionError: division by zero. "
            "%mesh errors shows where" in told
        )
        after = second.ok("%mesh errors").text().strip()
        assert before.startswith(after)
        assert "Cell In[2], line 3, in divide" in after
        second.ok("%mesh down")


def test_a_restart_leaves_the_mesh_and_ends_others():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --name other", timeout_s=60)
        others = ranks_of(kernel)
        kernel.ok("%mesh up --gpus 2 --new --keep 1h")
        pids = ranks_of(kernel)
        kernel.manager.restart_kernel(now=False)
        kernel.client.stop_channels()
        kernel.connect()
        support.eventually(lambda: not any(map(support.is_running, others)), END_S, "others")
        assert all(map(support.is_running, pids))
        kernel.ok("%mesh attach")
        assert ranks_of(kernel) == pids
        kernel.ok("%mesh down")
        support.eventually(lambda: not any(map(support.is_running, pids)), END_S, "the ranks")


def test_the_first_cell_of_the_notebook_brings_its_mesh_back(monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/train.ipynb")
    up = "%mesh up --gpus 2 --keep 1h"
    with KernelClient("monarch") as kernel:
        kernel.ok(up, timeout_s=60)
        kernel.ok("%%mesh\nx = rank + 5")
        kill(kernel)
    with KernelClient("monarch") as kernel:
        said = kernel.ok(up).text()
        assert "mesh0 (2 ranks (gpus=2)) is back" in said
        assert "--replace starts it anew, --new another one" in said
        assert "[0] 5\n[1] 6" in kernel.ok("%%mesh\nx").shown
        assert "is up already" in kernel.ok(up).text()
        kill(kernel)
    with KernelClient("monarch") as kernel:
        refused = kernel.run("%mesh up --gpus 3").error
        assert "mesh0 (gpus=2) is still there from before. Type: %mesh attach mesh0" in refused
        assert "mesh0 is up: 3 ranks" in kernel.ok("%mesh up --gpus 3 --new").text()
        kill(kernel)
    with KernelClient("monarch") as kernel:
        assert "mesh0 is up: 2 ranks" in kernel.ok(f"{up} --replace").text()
        assert "NameError" in kernel.run("%%mesh\nx").error
        kernel.ok("%mesh down")
        assert "No mesh is up" in kernel.ok("%mesh list").text()


def test_curves_groups_and_the_stop_button_go_on():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        kernel.ok(GROUP, timeout_s=60)
        work = kernel.start(TRAIN)
        kernel.until(lambda: "step 3" in work.text())
        kill(kernel)
    with KernelClient("monarch") as kernel:
        attach = kernel.ok("%mesh attach")
        kernel.until(lambda: "step 20" in attach.text())
        kernel.interrupt()
        kernel.until(lambda: "interrupted at\n" in attach.shown)
        assert re.search(r"loss: \d+ at step \d+", kernel.ok("mesh0").shown)
        assert "[0-1] tensor([2.])" in kernel.ok("%%mesh\ntotal()").shown
        alone = kernel.start("%%mesh 0\nprint('alone')\ntotal()")
        kernel.until(lambda: "alone" in alone.text())
        kernel.interrupt()
        kernel.finish(alone)
        assert "[0-1] tensor([2.])" in kernel.ok("%%mesh\ntotal()").shown
        kernel.ok("%mesh down")


def test_another_kernel_takes_a_mesh_away():
    with KernelClient("monarch") as first, KernelClient("monarch") as second:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        first.ok("%%mesh\nx = rank")
        refused = second.run("%mesh attach").error
        assert "is driven by process" in refused
        assert "%mesh attach mesh0 --fence" in refused
        second.ok("%mesh attach --fence")
        assert "[0] 0\n[1] 1" in second.ok("%%mesh\nx").shown
        lost = first.run("%%mesh\nx").error
        assert re.fullmatch(
            r"mesh0: another notebook has taken it over at \d\d:\d\d:\d\d. "
            r"%mesh attach mesh0 --fence brings it back here",
            lost,
        )
        assert "taken it over" in first.run("%mesh heal").error
        assert "taken it over" in first.run("mesh0.stop().get()").error
        first.ok("%mesh attach mesh0 --fence")
        assert "[0] 0\n[1] 1" in first.ok("%%mesh\nx").shown
        assert "taken it over" in second.run("%mesh get x").error
        assert "it goes on" in second.ok("%mesh down").text()
        first.ok("%mesh down")


def test_a_flood_goes_on_where_another_kernel_takes_the_mesh(monkeypatch, tmp_path):
    """The first is stopped and takes nothing, so its ranks wait in `print` as they are fenced. It
    has a history of its own: stopped while it writes, it would keep the second from writing."""
    with KernelClient("monarch") as second:
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
        with KernelClient("monarch") as first:
            _take_a_flood(first, second)


def _take_a_flood(first: KernelClient, second: KernelClient) -> None:
    first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
    first.ok("%%mesh\ni = 0")
    flood = first.start("%%mesh\nwhile True:\n    print('flood', i)\n    i += 1")
    first.until(lambda: "flood" in flood.text())
    own = first.manager.provisioner.pid
    support.stop(own)
    try:
        attach = second.ok("%mesh attach --fence")
        second.until(lambda: "lines hidden" in attach.text())  # of what has come since
        second.interrupt()
        second.until(lambda: "interrupted at\n" in attach.shown)
        assert second.ok("%%mesh\ni > 10_000").shown.strip() == "[0-1] True"
    finally:
        os.kill(own, signal.SIGCONT)
    first.finish(flood)
    assert "taken it over" in flood.error
    second.ok("%mesh down")


def test_others_may_look_on():
    with KernelClient("monarch") as first, KernelClient("monarch") as second:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        first.ok("%%mesh\nprint('before')")
        look = second.ok("%mesh attach --view")
        assert "mesh0 (2 ranks (gpus=2)) is looked at" in look.text()
        assert "before" not in look.text()
        second.ok(ACTOR)
        assert "2 idle" in second.ok("print(get_ipython().user_ns['mesh0'])\n%mesh status").shown
        first.ok("%%mesh\nprint('hello', rank)")
        second.until(lambda: "[0] hello 0\n[1] hello 1" in look.text())
        assert "before" in second.ok("%mesh logs").shown
        for use in (
            "%%mesh\n1",
            "%mesh heal",
            "%mesh interrupt --kill 1",
            "%mesh up --gpus 2",
            "mesh0.spawn('sums', Sum, 10)",
            "mesh0.stop().get()",
            "%mesh keep 2h",
        ):
            assert re.search("looked at only|only looks at a mesh", second.run(use).error), use
        assert "it goes on" in second.ok("%mesh down mesh0").text()
        assert "No mesh is up" not in second.ok("%mesh list").text()
        assert "[0-1] 1" in first.ok("%%mesh\n1").shown
        second.ok("%mesh attach --view")


def test_nobody_comes_and_all_ends():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --keep 3s", timeout_s=60)
        pids = ranks_of(kernel)
        kill(kernel)
    assert all(map(support.is_running, pids))
    support.eventually(lambda: not any(map(support.is_running, pids)), END_S, "the ranks to end")


def test_what_ranks_print_before_they_know_the_tag_of_their_cell_here_is_in_its_cell(tmp_path):
    told = tmp_path / "told"
    with KernelClient("monarch") as first:
        first.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        running = first.start(LOGS.format(str(told)))
        first.until(lambda: "line 5" in running.text())
        kill(first)
    with KernelClient("monarch") as second:
        second.ok(LATE)
        attach = second.ok("%mesh attach")
        told.touch()
        assert second.ok("import time; time.sleep(0.7); 'quiet'").shown == "'quiet'\n"
        assert "[0, 100]" in second.ok("cell2.result().values()").shown
        second.until(lambda: len(lines_of(attach.text())) == 2 * LINES)
        assert set(lines_of(attach.text()).values()) == {1}, "none lost, none doubled"
        assert second.ok(CURVES).text() == "run 1: 0 0-499, 1 0-499\n"
        second.ok("%mesh down")


def test_it_is_ended_without_being_attached():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        pids = ranks_of(kernel)
        kill(kernel)
    with KernelClient("monarch") as kernel:
        [record] = kept_record.all_records()
        assert "mesh0 is ended" in kernel.ok("%mesh down --kept mesh0").text()
        support.eventually(lambda: not any(map(support.is_running, pids)), END_S, "the ranks")
        support.eventually(lambda: not Path(record.run_dir).exists())
        assert "No mesh is up" in kernel.ok("%mesh list").text()
    sweep_all()  # of the second kernel, which may have been killed as it got ready for a mesh


def test_a_rank_that_died_meanwhile_is_healed():
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 2 --keep 1h", timeout_s=60)
        pids = ranks_of(kernel)
        kernel.ok(ACTORS)
        kill(kernel)
    os.kill(pids[1], signal.SIGKILL)
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh attach")
        assert "rank 1" in kernel.run("%%mesh\n1").error
        kernel.ok("%mesh heal")
        assert "[0] 0\n[1] 1" in kernel.ok("%%mesh\nrank").shown
        assert "[12, 11]" in kernel.ok("print(sums.add.call(1).get().values())").text()
        kernel.ok("%mesh down")
