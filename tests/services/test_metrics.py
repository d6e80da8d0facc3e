"""`monarch_nb.log`: what it takes, what it refuses, and that what gathers stays small."""

import fractions
import math
import threading
import time

import numpy as np
import pytest
import torch

from monarch_nb import log, log_to, run
from monarch_nb.core.runs import RunKey
from monarch_nb.services import metric_writers, metrics
from monarch_nb.services.metrics import MAX_NAMES, MAX_POINTS, Recorder

FIRST = RunKey(0, "", 1)


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(metrics, "recorder", made)
    return made


def taken(recorder: Recorder) -> dict[str, list[tuple[int, float]]]:
    samples = recorder.take().samples
    return {name: [(s.step, s.mean) for s in found] for (*_, name), found in samples.items()}


@pytest.mark.parametrize("value, kept", [
    (3, 3.0), (0.25, 0.25), (True, 1.0), (np.float32(0.5), 0.5), (np.int64(7), 7.0),
    (np.array(2.0), 2.0), (torch.tensor(0.5), 0.5), (torch.tensor(4), 4.0),
    (torch.tensor(0.5, requires_grad=True), 0.5), (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
    (fractions.Fraction(1, 4), 0.25),
])  # fmt: skip
def test_numbers(recorder, value, kept):
    log(loss=value)
    assert taken(recorder) == {"loss": [(0, kept)]}


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, torch.tensor(math.nan)])
def test_what_is_not_finite_is_a_gap(recorder, value):
    log(loss=value)
    [[sample]] = recorder.take().samples.values()
    assert (sample.step, sample.weight) == (0, 0)


@pytest.mark.parametrize("value, said", [
    ("0.5", "'loss' is to be a number, not '0.5' \\(str\\)"),
    (None, "'loss' is to be a number, not a NoneType"),
    (1j, "'loss' is to be a number, not a complex"),
    (torch.zeros(3), r"'loss' has shape \(3,\); log one number of it: loss.mean\(\)"),
    (np.zeros((1, 1)), r"'loss' has shape \(1, 1\)"),
    ([1], "'loss' is to be a number, not a list"),
    (b"1", "'loss' is to be a number"),
])  # fmt: skip
def test_anything_else_is_a_type_error_and_nothing_is_logged(recorder, value, said):
    with pytest.raises(TypeError, match=said):
        log(lr=1, loss=value)
    assert not recorder


@pytest.mark.parametrize("step", [0.5, "1", math.nan, 2**60])
def test_steps_are_integers(recorder, step):
    with pytest.raises(TypeError, match="step"):
        log(step, loss=1)


def test_steps_are_counted_by_name_where_none_is_given(recorder):
    log(loss=1)
    log(10, loss=2)
    log(loss=3, lr=4)
    log(np.int64(20), lr=5)
    assert taken(recorder) == {"loss": [(0, 1), (10, 2), (11, 3)], "lr": [(0, 4), (20, 5)]}


def test_what_gathers_stays_small_and_keeps_the_extremes(recorder):
    for step in range(50_000):
        log(step, loss=1.0, spike=9.0 if step == 31_007 else 0.0)
    assert len(recorder._values) <= metrics.MAX_WAITING
    samples = recorder.take().samples
    assert all(len(found) <= MAX_POINTS for found in samples.values())
    assert sum(sample.weight for sample in samples[0, FIRST, "loss"]) == 50_000
    assert max(sample.high for sample in samples[0, FIRST, "spike"]) == 9.0
    assert not recorder


def test_too_many_names_are_counted(recorder):
    for _ in range(3):
        log(**{f"name{number}": 1 for number in range(MAX_NAMES + 5)})
    batch = recorder.take()
    assert len(batch.samples) == MAX_NAMES
    assert (batch.left_out, batch.first_left_out) == (15, f"name{MAX_NAMES}")


def test_threads_lose_nothing(recorder):
    def work(number: int) -> None:
        for step in range(5_000):
            log(step, **{f"of{number}": step})

    found: dict[str, int] = {}
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads) or recorder:
        for (*_, name), samples in recorder.take().samples.items():
            found[name] = found.get(name, 0) + sum(sample.weight for sample in samples)
    assert found == {f"of{number}": 5_000 for number in range(4)}


def test_a_fork_of_a_plain_program_has_its_own(recorder):
    log(loss=1)
    recorder.forget()
    assert not recorder


def runs_of(recorder: Recorder) -> dict[RunKey, list[int]]:
    samples = recorder.take().samples
    return {key: [s.step for s in found] for (_, key, _), found in samples.items()}


def test_a_run_begins_where_it_is_said_or_where_steps_start_again(recorder):
    for name in ("a", "b", "a"):
        run(name)
        log(loss=1)
        log(loss=1)
    for step in (0, 1, 2, 3, 4, 3, 2, 5, 0, 1):
        log(step, loss=1)
    assert runs_of(recorder) == {
        RunKey(0, "a", 1): [0, 1], RunKey(0, "b", 1): [0, 1],
        RunKey(0, "a", 2): [0, 1],
        RunKey(0, "", 1): [0, 1, 2, 3, 4, 5], RunKey(0, "", 2): [0, 1],
    }  # fmt: skip


def test_all_names_start_again_together(recorder):
    for _ in range(2):
        for step in range(3):
            log(step, loss=1)
        log(2, accuracy=1)
    samples = recorder.take().samples
    assert {(key.number, name) for _, key, name in samples} == {
        (1, "loss"), (1, "accuracy"), (2, "loss"), (2, "accuracy"),
    }  # fmt: skip


def test_a_run_has_a_name(recorder):
    with pytest.raises(TypeError, match=r"run: a name is a text, not 3 \(int\)"):
        run(3)


class Summary:
    def __init__(self) -> None:
        self.told: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.append((name, value, step))


class Wandb:
    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values))


class Mlflow:
    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values))


@pytest.fixture
def no_writers():
    yield
    log_to(None)


@pytest.mark.usefixtures("no_writers")
def test_what_is_logged_is_also_written_to_what_was_handed_over(recorder):
    summary, wandb, mlflow, told = Summary(), Wandb(), Mlflow(), []
    for writer in (summary, wandb, mlflow, wandb, lambda *args: told.append(args)):
        log_to(writer)
    log(3, loss=torch.tensor(0.5), lr=1)
    log(loss=2)
    assert summary.told == [("loss", 0.5, 3), ("lr", 1.0, 3), ("loss", 2.0, 4)]
    assert wandb.told == mlflow.told == told == [(3, {"loss": 0.5, "lr": 1.0}), (4, {"loss": 2.0})]
    log_to(None)
    log(9, loss=1)
    assert len(told) == 2
    assert [step for step, _ in taken(recorder)["loss"]] == [3, 4, 9]


@pytest.mark.usefixtures("no_writers")
def test_tensorboard_reads_what_was_written(recorder, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", exc_type=ImportError)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        log_to(writer)
        for step in range(3):
            log(step, loss=step / 2)
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(0, 0), (1, 0.5), (2, 1)]


def test_anything_else_is_no_writer():
    with pytest.raises(TypeError, match="give a SummaryWriter, a run of W&B, .* not a str"):
        log_to("runs/1")
    assert not metric_writers.writers


def test_a_call_is_cheap(recorder):
    def batch() -> float:
        start = time.perf_counter()
        for step in range(1_000):
            log(step, loss=0.5)
        return time.perf_counter() - start

    best_s = min(batch() for _ in range(20)) / 1_000
    assert best_s < 10 * 5e-6  # the goal is 5 us
