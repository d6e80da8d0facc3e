"""What a cell that is silent for long says it waits for; over a fake runtime."""

import re
import time
from types import SimpleNamespace

import pytest

from monarch_nb.notebook.cells.waiting import sentence
from tests.kernel.client import Cell


def lines(cell: Cell) -> list[str]:
    """The line, as often as it was drawn; an empty one where the output was cleared."""
    shown = cell.contents("display_data", "update_display_data", "clear_output")
    return [content.get("data", {}).get("text/plain", "") for content in shown]


def test_a_cell_that_waits_says_for_whom_and_the_line_goes_with_it(fake_kernel):
    cell = fake_kernel.ok("%%mesh\nsleep(2.4) if rank % 2 else None")
    first, *_, last = lines(cell)
    assert first == "mesh0: waiting for ranks 1,3 of 4, 1.0 s"
    assert last == ""
    assert 3 <= len(lines(cell)) <= 4
    [shown] = cell.contents("display_data")
    updates = cell.contents("update_display_data")
    assert all(update["transient"] == shown["transient"] for update in updates)


def test_what_comes_after_it_takes_its_place(fake_kernel):
    cell = fake_kernel.ok("%%mesh\nsleep(1.5)\nprint('said')\nsleep(0.3)\n5")
    assert lines(cell) == ["mesh0: waiting for ranks 0-3, 1.0 s", "", "[0-3] 5"]
    fake_kernel.ok(
        "fake.waits = [SimpleNamespace(what='trainer.step', mesh='', ranks=(1,), size=2)]"
    )
    cell = fake_kernel.ok("time.sleep(1.3); print('own')")
    assert lines(cell) == ["trainer.step: waiting for rank 1 of 2, 1.0 s", ""]
    assert cell.text() == "own\n"
    cell = fake_kernel.ok(  # a kernel flushes with every request, and shows nothing by that
        "import sys; sys.stdout.flush(); time.sleep(1.3); print('own')"
    )
    assert lines(cell) == ["trainer.step: waiting for rank 1 of 2, 1.0 s", ""]
    fake_kernel.ok("fake.waits = []")


def test_between_other_output_it_says_how_long_it_was(fake_kernel):
    cell = fake_kernel.ok("%%mesh\nprint('first')\nsleep(1.5)\nprint('second')")
    first, last = lines(cell)
    assert first.startswith("mesh0: waiting for")
    assert last.startswith("waited 1.")
    assert cell.text() == "[0-3] first\n[0-3] second\n"


def test_a_cell_that_prints_needs_no_line(fake_kernel):
    code = "%%mesh\nfor i in range(8): print(i); sleep(0.3)"
    assert lines(fake_kernel.ok(code)) == []


def test_a_quick_cell_and_a_cell_without_ranks_have_none(fake_kernel):
    assert lines(fake_kernel.ok("%%mesh\n1")) == ["[0-3] 1"]
    assert lines(fake_kernel.ok("import time; time.sleep(1.3)")) == []


@pytest.fixture(autouse=True)
def imports(fake_kernel):
    fake_kernel.ok("import time; from types import SimpleNamespace")


@pytest.mark.parametrize("after, count", [("0.3", 2), ("-1", 0), ("0", 0)])
def test_it_comes_when_wanted(fake_kernel, after, count):
    cell = fake_kernel.ok(f"%%mesh --progress-after {after}\nsleep(0.8)")
    assert len(lines(cell)) == count


def test_a_slow_start_is_told(fake_kernel):
    fake_kernel.ok(
        "import time\nfrom types import SimpleNamespace\n"
        "fake.starting = lambda: time.sleep(1.5)\n"
        "fake.waits = [SimpleNamespace(what='start', mesh='slow', ranks=(1,), size=2)]"
    )
    cell = fake_kernel.ok("%mesh up --gpus 2 --name slow")
    assert lines(cell) == ["slow: waiting for rank 1 of 2 to start, 1.0 s", ""]
    assert cell.text().startswith("slow is up: 2 ranks (gpus=2) in 1.5 s.")
    fake_kernel.ok("%mesh down slow\nfake.starting = lambda: None; fake.waits = []")


def test_a_stop_while_a_mesh_starts_is_told_in_a_line(fake_kernel):
    fake_kernel.ok("fake.starting = lambda: (print('begins', flush=True), time.sleep(30))")
    cell = fake_kernel.start("%mesh up --gpus 2 --name slow")
    fake_kernel.until(lambda: "begins" in cell.text())
    fake_kernel.stop_s(cell)
    fake_kernel.ok("fake.starting = lambda: None")
    assert cell.error == (
        "KeyboardInterrupt: slow was not started: stopped before its ranks were up"
    )


def test_calls_are_named_and_many_are_counted():
    waits = [
        SimpleNamespace(what=f"trainer.step{i}", mesh="", ranks=(0, 1), size=2) for i in range(5)
    ]
    assert sentence(waits[:1] * 3, 12.3) == "trainer.step0: waiting for ranks 0-1, 12 s"
    assert sentence(waits, 180).endswith("trainer.step2: waiting for ranks 0-1; and 2 more, 3 min")
    assert sentence([], 5) == ""


def test_a_background_cell_shows_how_far_it_is(fake_kernel):
    started = time.monotonic()
    cell = fake_kernel.ok("%%mesh -a\nsleep(0.6 if rank else 1.8)")
    took = r"done in ([\d.]+) s"
    found = fake_kernel.until(lambda: re.search(took, "".join(lines(cell))), timeout_s=5)
    assert 1.8 <= float(found[1]) <= round(time.monotonic() - started, 1)
    drawn = lines(cell)
    assert any("3 of 4 ranks done" in line for line in drawn)
    assert len(drawn) < 8
    began = time.monotonic()
    fake_kernel.ok("1")
    assert time.monotonic() - began < 0.5
