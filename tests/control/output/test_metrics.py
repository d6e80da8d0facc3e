"""What ranks and the controller log becomes curves."""

import os

import pytest

from monarch_nb import Actor, ProcMesh, endpoint, log
from monarch_nb.services import metrics
from tests.control.conftest import WITHIN_S
from tests.support import eventually


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> None:
        log(number, loss=float(number))

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Asker(Actor):
    @endpoint
    def ask(self, procs: ProcMesh) -> None:
        procs.metrics()


LOGS = "from monarch_nb import log\nfor step in range(5): log(step, loss=step + rank, lr=0.1)"


def test_curves_of_a_cell_are_there_when_it_has_ended(mesh):
    made = mesh(4)
    made.cell(LOGS)
    curves = made.client.metrics.curves(made.name)
    assert list(curves) == ["loss", "lr"]
    assert curves["loss"].points == [(s, s + 1.5, s, s + 3, 4) for s in range(5)]
    assert curves["loss"].of(2) == [(step, step + 2) for step in range(5)]
    assert curves["loss"].ranks == [0, 1, 2, 3]


def test_actors_and_threads_log_too(mesh):
    made = mesh(2)
    trainers = made.procs.spawn("trainers", Trainer)
    for number in range(3):
        trainers.step.call(number).get(timeout=WITHIN_S)
    made.cell(
        "import threading\nfrom monarch_nb import log\n"
        "t = threading.Thread(target=lambda: log(7, of_thread=1)); t.start(); t.join()"
    )
    curves = made.client.metrics.curves
    eventually(lambda: len(curves(made.name)["loss"].points) == 3)
    assert curves(made.name)["loss"].points[2] == (2, 2, 2, 2, 2)
    assert curves(made.name)["of_thread"].points == [(7, 1, 1, 1, 2)]


def test_a_cell_that_is_run_again_is_another_run(mesh):
    made = mesh(2)
    made.cell(LOGS, tag=101)
    made.cell("for step in range(2): log(step, loss=9)", tag=102)
    first, second = made.client.metrics.runs(made.name)
    assert first.curves["loss"].points == [(s, s + 0.5, s, s + 1, 2) for s in range(5)]
    assert (list(first.curves), list(second.curves)) == (["loss", "lr"], ["loss"])
    curves = made.client.metrics.curves(made.name)
    assert curves["loss"].points == [(0, 9, 9, 9, 2), (1, 9, 9, 9, 2)]
    assert len(curves["lr"].points) == 5


SWEEP = """from monarch_nb import log, run
for lr in (0.1, 0.2):
    run(f"lr={lr}")
    for step in range(3): log(step, loss=lr + rank)
"""


def test_runs_of_one_cell_are_kept_apart_and_are_a_table(mesh):
    made = mesh(2)
    made.cell(SWEEP, tag=101)
    made.cell("for step in range(2, 6): log(step, loss=1.0)", tag=102)  # a resume
    runs = made.client.metrics.runs(made.name)
    assert [(run.number, run.name) for run in runs] == [(1, "lr=0.1"), (2, "lr=0.2")]
    assert [step for step, _ in runs[1].curves["loss"].of(0)] == [0, 1, 2, 3, 4, 5]
    table = made.procs.slice(gpus=1).metrics()  # of pandas, which is here
    assert list(table.itertuples(index=False, name=None))[:2] == [
        ("lr=0.1", 1, "loss", 1, 0, 1.1), ("lr=0.1", 1, "loss", 1, 1, 1.1)
    ]  # fmt: skip
    with pytest.raises(Exception, match="not on a rank"):
        made.procs.spawn("asker", Asker).slice(gpus=0).ask.call_one(made.procs).get(
            timeout=WITHIN_S
        )


def test_a_rank_that_comes_later_goes_on_with_the_run(mesh):
    made = mesh(2)
    made.cell("from monarch_nb import log\nfor step in range(10): log(step, loss=1)", tag=1, gpus=0)
    made.cell("from monarch_nb import log\nfor step in range(8, 12): log(step, loss=3)", tag=2)
    [run] = made.client.metrics.runs(made.name)
    assert run.curves["loss"].points[-1] == (11, 3, 3, 3, 2)


def test_the_oldest_runs_give_way(mesh):
    made = mesh(1)
    made.cell("from monarch_nb import log, run\nfor n in range(12): run(f'r{n}'); log(x=n)")
    kept = [run.name for run in made.client.metrics.runs(made.name)]
    assert kept == [f"r{n}" for n in range(2, 12)]


def test_a_flood_arrives_thinned_with_its_extremes(mesh):
    made = mesh(2)
    made.cell("from monarch_nb import log\n"
              "for step in range(100_000): log(step, x=float(step == 77_777))")  # fmt: skip
    curve = made.client.metrics.curves(made.name)["x"]
    eventually(lambda: sum(count for *_, count in curve.points) == 200_000)
    assert len(curve.points) <= 512
    assert max(high for _, _, _, high, _ in curve.points) == 1.0
    assert len(curve.of(0)) <= 512


def test_the_33rd_name_is_counted_and_said_once(mesh, caplog):
    made = mesh(2)
    for _ in range(2):
        made.cell("from monarch_nb import log\nlog(**{f'name{n}': 1 for n in range(40)})")
    found = made.client.metrics
    assert len(found.curves(made.name)) == 32
    assert found.left_out(made.name) == 2 * 2 * 8
    [said] = [each.getMessage() for each in caplog.records if "names" in each.getMessage()]
    assert f"{made.name} logs more than 32 names: 'name32' and further ones are not kept" in said


def test_the_controller_is_a_mesh_of_its_own(mesh, monkeypatch):
    monkeypatch.setattr(metrics, "recorder", metrics.Recorder())
    made = mesh(1)
    log(3, evaluation=0.5)
    assert made.client.metrics.curves("controller")["evaluation"].points == [(3, 0.5, 0.5, 0.5, 1)]
    assert "evaluation" not in made.client.metrics.curves(made.name)


def test_a_mesh_that_logs_nothing_has_no_curves(mesh):
    made = mesh(1)
    assert dict(made.client.metrics.curves(made.name)) == {}


def test_a_value_that_is_no_number_fails_the_cell_with_a_sentence(mesh):
    made = mesh(1)
    assert made.cell("from monarch_nb import log\nlog(loss='low')") == {0: "error"}
    [failure] = made.client.failures.of(made.name)
    assert failure.record.headline == ("TypeError: log: 'loss' is to be a number, not 'low' (str)")


def test_a_fork_of_a_rank_is_told_to_log_in_the_rank(mesh):
    made = mesh(1)
    code = """
import os
from monarch_nb import log
log(x=1)
read, write = os.pipe()
if os.fork() == 0:
    try: log(x=2)
    except Exception as error: os.write(write, str(error).encode())
    os._exit(0)
os.wait()
print(os.read(read, 1000).decode())
"""
    made.cell(code)
    eventually(lambda: made.client.tail.last(1, made.name))
    [line] = made.client.tail.last(1, made.name)
    assert line.text.endswith("log in the rank")


@pytest.mark.fault
def test_a_rank_that_dies_leaves_its_curve(mesh):
    made = mesh(2)
    made.cell(LOGS)
    made.cell("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", gpus=1)
    assert made.client.metrics.curves(made.name)["loss"].of(1)[-1] == (4, 5.0)
