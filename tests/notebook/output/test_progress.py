"""tqdm and rich on ranks: bars in the front end instead of text."""

import re
import subprocess
import sys
from typing import Any

import pytest

from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.progress import MAX_ROWS, Bars
from tests.kernel.client import Cell
from tests.notebook.output.test_outputs import Clock, Recorder

FIRST_CELLS = ["%mesh up --gpus 4", "%%mesh\nimport time\nfrom tqdm.auto import tqdm, trange"]

FULL = "100%|████████████████████|"


def states(cell: Cell) -> list[str]:
    """What the cell's display of bars has said, one text for each drawing."""
    return [one["data"]["text/plain"]
            for one in cell.contents("display_data", "update_display_data")]  # fmt: skip


def last(cell: Cell) -> list[str]:
    """The lines of the last drawing, without what the clock says; nothing else was shown."""
    assert [message["msg_type"] for message in cell.messages].count("display_data") == 1
    assert cell.text() == cell.text("stderr") == ""
    return [re.sub(r" \[\d+:.*?\]", "", line) for line in states(cell)[-1].splitlines()]


def event(rank: int, *bars: dict[str, Any], size: int = 4) -> Any:
    content = {"bars": [{"serial": 1, **bar} for bar in bars]}
    return OutputEvent(1, rank, "m", size, "progress", content=content)


# ---------------------------------------------------------------------------------- the drawing


def test_rows_have_no_stripes():
    bars = Bars()
    bars.add("m", 0, 1, {"bars": [{"id": 1, "serial": 1, "total": 2, "done": 1}]}, 0.0)
    assert "<tbody" not in bars.draw(0.0)["data"]["text/html"], "JupyterLab stripes those"


def test_html_is_escaped_and_a_bar_is_the_browsers():
    bars = Bars()
    bar = {"id": 1, "serial": 1, "description": "<script>", "done": 5, "total": 10}
    bars.add("m", 0, 4, {"bars": [bar]}, 0.0)
    markup = bars.draw(0.0)["data"]["text/html"]
    assert "<script>" not in markup
    assert '<progress value="0.5000" max="1"' in markup


def test_five_drawings_a_second_and_the_last_state_in_the_end():
    sink, clock = Recorder(), Clock()
    output = CellOutput(sink, clock)
    output.expect("m", range(4), 4)
    start = clock.now
    for step in range(1, 1001):
        clock.now = start + step / 1000
        for rank in range(4):
            bar = {"id": 1, "serial": step, "done": step, "total": 1000}
            at = output.add(event(rank, bar))
            if at is not None and at <= clock.now:
                output.flush()
    assert len(sink.sent) <= 6
    output.conclude("m", {})
    output.end()
    assert sink.sent[-1][1]["text/plain"].startswith(f"[0-3] {FULL} 1000/1000")


def test_a_state_that_was_overtaken_is_dropped():
    bars = Bars()
    for serial, done in [(2, 10), (1, 9)]:
        bars.add("m", 0, 1, {"bars": [{"id": 1, "serial": serial, "done": done, "total": 10}]}, 0.0)
    assert " 10/10 " in bars.draw(0.0)["data"]["text/plain"]


def test_hundreds_of_bars_that_have_ended_are_counted():
    bars = Bars()
    for number in range(500):
        bar = {"id": number, "serial": 1, "done": 10, "total": 10, "closed": number < 499}
        bars.add("m", 0, 1, {"bars": [bar]}, 0.0)
    plain = bars.draw(0.0)["data"]["text/plain"].splitlines()
    assert re.fullmatch(r"\.\.\. \d+ bars that have ended", plain[0])
    assert len(plain) == MAX_ROWS + 1


def test_a_terminal_gets_one_line_in_the_end():
    sink = Recorder()
    sink.redraws = False
    output = CellOutput(sink)
    output.expect("m", range(2), 2)
    for done in (1, 2):
        for rank in range(2):
            bar = {"id": 1, "serial": done, "done": done, "total": 2, "closed": done == 2}
            output.add(event(rank, bar, size=2))
        output.flush()
    assert sink.sent == []
    output.conclude("m", {})
    output.end()
    [(kind, data)] = sink.sent
    assert (kind, data["text/plain"]) == ("display_data", f"[0-1] {FULL} 2/2 [00:00]")


# --------------------------------------------------------------------------------- in a kernel


@pytest.mark.parametrize("imported", ["tqdm", "tqdm.auto", "tqdm.std", "tqdm.notebook"])
def test_ranks_that_move_together_are_one_bar(kernel, imported):
    cell = kernel.ok(
        f"%%mesh\nfrom {imported} import tqdm as bar\n"
        "for i in bar(range(30), desc='train'): time.sleep(0.01)"
    )
    assert last(cell) == [f"[0-3] train: {FULL} 30/30"]


def test_it_moves_while_the_cell_runs_and_the_slowest_is_seen(kernel):
    cell = kernel.start(
        "%%mesh\nfor i in tqdm(range(20), mininterval=0): time.sleep(0.2 if rank == 3 else 0.05)"
    )
    apart = lambda state: re.search(r"^\[3\] +(\d+)%.*\n\[0-2\] +(\d+)%", state)
    kernel.until(lambda: any(map(apart, states(cell))))
    assert cell.reply is None
    kernel.finish(cell)
    assert last(cell) == [f"[0-3] {FULL} 20/20"]
    assert len(states(cell)) < 5 * 4.5 + 3


def test_nested_bars_and_those_that_go_when_they_end(kernel):
    cell = kernel.ok(
        "%%mesh\nfor epoch in trange(2, desc='epoch'):\n"
        "    for i in trange(10, desc=f'steps of {epoch}', leave=False): time.sleep(0.01)\n"
        "    for i in trange(5, desc='eval', leave=True): pass"
    )
    assert any("steps of" in state for state in states(cell))
    assert last(cell) == [
        f"[0-3] epoch: {FULL} 2/2",
        f"[0-3] eval: {FULL} 5/5",
        f"[0-3] eval: {FULL} 5/5",
    ]


def test_manual_updates_postfix_and_unknown_totals(kernel):
    cell = kernel.ok(
        "%%mesh\nbar = tqdm(total=10, unit='B', unit_scale=True)\nbar.update(4)\n"
        "bar.set_postfix(loss=0.5)\nbar.update(6)\nbar.close()\n"
        "for i in tqdm(iter(range(7))): pass\n"
        "for i in tqdm(range(5), disable=True): pass"
    )
    assert "loss=0.5" in states(cell)[-1]
    assert last(cell) == [f"[0-3] {FULL} 10/10", "[0-3] 7"]


def test_lines_beside_bars_are_printed(kernel):
    cell = kernel.ok("%%mesh\nfor i in tqdm(range(2)):\n    tqdm.write(f'step {i}')\nprint('end')")
    assert cell.text() == "[0-3] step 0\n[0-3] step 1\n[0-3] end\n"
    assert cell.text("stderr") == ""


def test_a_bar_that_writes_elsewhere_is_left_alone(kernel):
    cell = kernel.ok(
        "%%mesh\nimport io\nout = io.StringIO()\nfor i in tqdm(range(3), file=out): pass\n"
        "'3/3' in out.getvalue()"
    )
    assert cell.shown == "[0-3] True\n"


def test_a_bar_stays_where_its_cell_has_failed_or_was_stopped(kernel):
    failed = kernel.run(
        "%%mesh\nfor i in tqdm(range(10)):\n    if i == 5: 1 / 0\n    time.sleep(.05)"
    )
    assert "ZeroDivisionError" in failed.error
    assert re.fullmatch(r"\[0-3\]  [45]0%\|.*\| [45]/10 \[.*\] stopped", states(failed)[-1])
    cell = kernel.start("%%mesh\nfor i in tqdm(range(1000), desc='long'): time.sleep(0.05)")
    kernel.until(lambda: len(states(cell)) > 2)
    kernel.interrupt()
    kernel.finish(cell)
    kernel.settle()
    assert cell.status == "error"
    assert states(cell)[-1].endswith(" stopped")
    assert last(kernel.ok("%%mesh\nfor i in tqdm(range(3)): pass")) == [f"[0-3] {FULL} 3/3"]


def test_a_bar_that_nobody_closes_is_stopped_until_it_moves_again(kernel):
    cell = kernel.run("%%mesh\nbar = tqdm(total=10)\nbar.update(3)\n1 / 0")
    assert re.fullmatch(r"\[0-3\]  30%\|.*\| 3/10 \[.*\] stopped", states(cell)[-1])
    other = kernel.ok("%%mesh\ntime.sleep(0.2); bar.update(7); bar.close()")
    kernel.until(lambda: re.fullmatch(r"\[0-3\] 100%\|.*\| 10/10 \[[^]]*\]", states(cell)[-1]))
    assert states(other) == []


def test_rich(kernel):
    cell = kernel.ok(
        "%%mesh\nfrom rich.progress import Progress, track\n"
        "for i in track(range(20), description='[green]track[/]'): time.sleep(0.01)\n"
        "with Progress(transient=True) as progress:\n"
        "    first = progress.add_task('goes', total=5)\n"
        "    for i in range(5): progress.advance(first); time.sleep(0.05)\n"
        "with Progress() as progress:\n"
        "    one, two = progress.add_task('one', total=4), progress.add_task('two', total=None)\n"
        "    for i in range(4): progress.advance(one); progress.advance(two)"
    )
    assert last(cell) == [f"[0-3] track: {FULL} 20/20", f"[0-3] one: {FULL} 4/4", "[0-3] two: 4"]


def test_the_end_of_a_bar_is_a_line_of_the_log(kernel):
    kernel.ok("%%mesh\nfor i in tqdm(range(3), desc='logged'): pass")
    shown = kernel.ok("%mesh logs 2 --tail 1").text()
    assert shown.startswith(f"[2] logged: {FULL} 3/3 [00:00")


@pytest.mark.slow
def test_a_program_without_a_notebook_prints_the_end_of_a_bar(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from monarch_nb import Actor, endpoint, this_host\n"
        "class Worker(Actor):\n"
        "    @endpoint\n"
        "    def work(self):\n"
        "        from tqdm import tqdm\n"
        "        for i in tqdm(range(5), desc='work'): pass\n"
        "if __name__ == '__main__':\n"
        "    this_host().spawn_procs(name='m').spawn('worker', Worker).work.call_one().get()\n"
    )
    done = subprocess.run(
        [sys.executable, program], check=True, capture_output=True, text=True, timeout=50
    )
    assert f"work: {FULL} 5/5" in done.stderr
