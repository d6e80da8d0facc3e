"""`%%mesh --layout`: where each rank's output stands, what is sent for it, what it is made of."""

import html.parser
import json
import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.notebook import options
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.layouts.layout import FOLD, Layout, Section, Shown, drawn
from monarch_nb.notebook.layouts.sections import LIVE_RATE, LIVE_S, MAX_CHARS, MAX_SHOWN, Sections
from monarch_nb.notebook.output.cell_output import CellOutput
from tests.kernel.client import Cell
from tests.notebook.output.test_outputs import Recorder
from tests.support import code_until

FIRST_CELLS = ["%mesh up --gpus 4"]

# What JupyterLab's sanitizer leaves in a notebook that is not trusted, of what we use; the
# attribute `name` is for trusted ones.
KEPT = {"div": {"style"}, "pre": {"style"}, "span": {"style"}, "summary": set(),
        "details": {"open", "name"}, "table": {"style"}, "thead": set(), "tbody": set(),
        "tr": set(), "th": {"style"}, "td": {"style"}, "img": {"src", "style"}}  # fmt: skip


class Checker(html.parser.HTMLParser):
    """Reads HTML; fails at what a front end would take away, and at what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert {name for name, _ in attrs} <= KEPT[tag], (tag, attrs)
        assert not any("var(" in (value or "") for _, value in attrs)
        if tag != "img":
            self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


def read(markup: str) -> Checker:
    checker = Checker()
    checker.feed(markup)
    checker.close()
    assert not checker.open
    return checker


def pictures(cell: Cell) -> list[dict[str, Any]]:
    """The states of the cell's one changing display."""
    contents = cell.contents("display_data", "update_display_data")
    found = [one for one in contents if one["transient"].get("display_id")]
    assert len({one["transient"]["display_id"] for one in found}) == 1
    assert [m["msg_type"] for m in cell.messages].count("display_data") == 1
    return [one["data"] for one in found]


def last_sections(cell: Cell) -> dict[str, Any]:
    """The last drawing of all ranks, in a cell that shows other things, too."""
    contents = cell.contents("display_data", "update_display_data")
    return [one["data"] for one in contents if "[3]" in one["data"].get("text/html", "")][-1]


def iopub_bytes(cell: Cell) -> int:
    return sum(len(json.dumps(message, default=str)) for message in cell.messages)


# -------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("line, layout", [
    ("", FOLD),
    ("--layout fold", FOLD),
    ("--layout columns", Layout("columns")),
    ("--layout rank=2 --no-stream", Layout(only=2, streams=False)),
    ("--group-outputs engine", Layout("ranks")),
    ("--group-outputs=type", FOLD),
    ("-e", Layout("ranks")),
    ("-e -r", FOLD),
])  # fmt: skip
def test_options(line, layout):
    assert options.parse_cell(line).layout == layout


@pytest.mark.parametrize("line, told", [
    ("--layout rows", "does not know 'rows'; there are fold, columns, tabs, ranks and rank=0"),
    ("--layout rank=x", "does not know 'rank=x'"),
    ("--group-outputs x", "does not know 'x'; there are type, order, engine"),
])  # fmt: skip
def test_a_mistake_is_told_in_one_line(line, told):
    with pytest.raises(MagicError, match=told):
        options.parse_cell(line)


# ---------------------------------------------------------------------------------- the drawing


@pytest.mark.parametrize("kind", ["columns", "tabs", "ranks"])
def test_html_survives_jupyterlab_and_text_is_escaped(kind):
    evil = "<script>alert(1)</script>&amp; \x1b[31mred\x1b[0m"
    sections = [Section("[0]", [evil], "... 3 lines before"), Section("[1]", ["one\ntwo"])]
    data = drawn(kind, sections, "id")["data"]
    found = read(data["text/html"])
    assert "<script>alert(1)</script>&amp; red" in found.text
    assert all(word in found.text for word in ("[0]", "[1]", "one\ntwo", "... 3 lines before"))
    assert data["text/plain"] == f"[0]\n... 3 lines before\n{evil}\n[1]\none\ntwo"


def test_one_tab_is_open():
    data = drawn("tabs", [Section("[0]", ["a"]), Section("[1]", ["b"])], "id")["data"]
    assert data["text/html"].count("<details") == 2
    assert data["text/html"].count(" open>") == 1


def test_what_is_drawn_costs_a_share_of_what_has_come():
    sections = Sections("columns", range(4), 4, 1)
    spent = come = draws = 0
    for step in range(1000):
        now = step / 50
        for rank in range(4):
            sections.add(rank, "stdout", f"{'x' * 99}\n", now)
            come += 100
        if (at := sections.deadline) is not None and at <= now:
            spent += sum(map(len, sections.draw(now)["data"].values()))
            draws += 1
    assert draws >= 20
    assert spent < 1.5 * come


def test_sections_are_bounded_and_tell_where_the_rest_is():
    sections = Sections("ranks", range(4), 4, 7)
    for number in range(50_000):
        sections.add(2, "stdout", f"line {number}\n", 0.0)
    sections.add(0, "stdout", "10 %\r20 %\r30 %", 0.0)
    data = sections.final()["data"]
    plain = data["text/plain"].splitlines()
    assert plain[:2] == ["[0] 30 %", "[2]"]
    assert plain[2].endswith(" lines before, all of them: %mesh logs 2 --cell 7")
    assert plain[-1] == "line 49999"
    assert len(data["text/plain"]) < MAX_CHARS


def figure(text: str) -> dict[str, Any]:
    return {"data": {"image/png": text, "text/plain": "<Figure>"}, "metadata": {}}


def test_figures_survive_jupyterlab():
    shown = Shown('<img src="data:image/png;base64,QQ==" style="max-width:100%">', "<Figure>")
    for kind in ("columns", "tabs", "ranks"):
        data = drawn(kind, [Section("[0]", ["a", shown, "b"]), Section("[1]", [shown])], "id")[
            "data"
        ]
        assert read(data["text/html"]).tags.count("img") == 2
        assert data["text/plain"] == "[0]\na\n<Figure>\nb\n[1] <Figure>"


def test_too_many_figures_are_the_last_ones_and_it_is_told():
    sections = Sections("columns", range(4), 4, 7)
    for number in range(30):
        sections.show(1, figure(f"{number:02}" + "A" * 400_000), 0.0)
    sections.show(2, figure("B" * MAX_SHOWN), 0.0)
    sections.show(2, figure("small"), 0.0)
    data = sections.final()["data"]
    assert len(data["text/html"]) < MAX_SHOWN
    first, second = data["text/plain"].split("[2]\n")
    kept = first.count("<Figure>")
    told = "left out, too large beside the others: %%mesh without --layout"
    assert first.startswith(f"[1]\n... {30 - kept} figures or tables {told}\n<Figure>")
    assert second == f"... 1 figure or table {told}\n<Figure>"
    assert "base64,29AA" in data["text/html"]
    assert "base64,00AA" not in data["text/html"]


def test_large_figures_are_drawn_less_often():
    sections = Sections("columns", range(2), 2, 1)
    sections.show(0, figure("A" * 4 * LIVE_RATE), 0.0)
    sections.draw(10.0)
    sections.add(0, "stdout", "line\n", 10.1)
    assert 14.0 <= sections.deadline < 15.0
    small = Sections("columns", range(2), 2, 1)
    small.show(0, figure("A" * 1000), 0.0)
    small.draw(10.0)
    small.add(0, "stdout", "line\n", 10.1)
    assert small.deadline == 10.0 + LIVE_S


# --------------------------------------------------------------------------------- in a kernel


@pytest.mark.parametrize("kind", ["columns", "tabs", "ranks"])
def test_each_rank_has_a_section(kernel, kind):
    cell = kernel.ok(f"%%mesh --layout {kind}\nprint('hello', rank); print('end'); rank * 10")
    data = pictures(cell)[-1]
    assert data["text/plain"] == "\n".join(
        f"[{rank}]\nhello {rank}\nend\n{rank * 10}" for rank in range(4)
    )
    found = read(data["text/html"])
    assert all(f"hello {rank}\nend\n{rank * 10}" in found.text for rank in range(4))
    assert cell.text() == ""


def test_sections_are_drawn_while_the_cell_runs(kernel, tmp_path):
    seen = tmp_path / "seen"
    line = "%%mesh --layout columns --progress-after -1"
    cell = kernel.start(f"{line}\nprint('early')\n{code_until(seen)}")
    kernel.until(lambda: cell.displays and "early" in cell.displays[0]["text/html"])
    assert cell.reply is None
    seen.touch()
    kernel.finish(cell)
    assert pictures(cell)[-1]["text/plain"] == "\n".join(f"[{rank}] early" for rank in range(4))


def test_without_stream_all_comes_in_the_end(kernel):
    for layout in ("fold", "ranks"):
        cell = kernel.start(
            f"%%mesh --layout {layout} --no-stream\nimport time\n"
            "print('early'); time.sleep(0.5); print('late')"
        )
        kernel.finish(cell)
        if layout == "fold":
            assert [c["text"] for c in cell.contents("stream")] == ["[0-3] early\n[0-3] late\n"]
        else:
            [data] = pictures(cell)
            assert data["text/plain"].startswith("[0]\nearly\nlate\n[1]")


def test_one_rank_alone_is_shown_and_all_are_kept(kernel):
    cell = kernel.ok("%%mesh --layout rank=2\nprint('hello from', rank); rank")
    assert cell.shown == "[2] hello from 2\n[2] 2\n"
    assert "[3] hello from 3" in kernel.ok("%mesh logs 3 --tail 1").text()
    failed = kernel.run("%%mesh --layout rank=2\n1 / (rank - 1)")
    assert failed.error.startswith("rank 1: ZeroDivisionError")
    wrong = kernel.run("%%mesh 0-1 --layout rank=2\n1")
    assert "the cell does not run on that rank, but on ranks 0-1" in wrong.error


def test_too_much_for_a_section_names_the_log(kernel):
    cell = kernel.ok("%%mesh 1 --layout ranks\nfor i in range(50_000): print('line', i)")
    number = cell.reply["content"]["execution_count"]
    plain = pictures(cell)[-1]["text/plain"].splitlines()
    assert plain[1].endswith(f"lines before, all of them: %mesh logs 1 --cell {number}")
    assert plain[-1] == "line 49999"


@pytest.mark.parametrize("kind", ["columns", "tabs", "ranks"])
def test_figures_and_tables_stand_in_the_section_of_their_rank(kernel, kind):
    cell = kernel.ok(
        f"%%mesh --layout {kind}\nimport matplotlib.pyplot as plt, pandas\n"
        "print('before', rank); plt.plot([0, rank]); plt.show(); print('after', rank)\n"
        "pandas.DataFrame({'rank': [rank]})",
        timeout_s=90,
    )
    data = last_sections(cell)
    places, at = [], 0
    for rank in range(4):
        for mark in (f"before {rank}", "<img ", f"after {rank}", f"<td>{rank}</td>"):
            at = data["text/html"].index(mark, at)
            places.append(at)
    assert places == sorted(places)
    plain = "".join(
        rf"\[{rank}\]\nbefore {rank}\n<Figure .*\nafter {rank}\n *rank\n0 +{rank}\n"
        for rank in range(4)
    )
    assert re.fullmatch(plain, data["text/plain"] + "\n")


def test_what_needs_a_part_of_the_page_stands_below_the_sections(kernel):
    cell = kernel.ok(
        "%%mesh --layout columns\nfrom IPython.display import HTML, JSON, Latex, Markdown\n"
        "print('text'); display(JSON([1]), Markdown('**x**'), Latex('$y$')); HTML('<i>z</i>')"
    )
    page = last_sections(cell)["text/html"]
    assert page.count("$y$") == page.count("<i>z</i>") == 4
    shown = [set(data) - {"text/plain"} for data in cell.displays]
    assert {"application/json"} in shown
    assert {"text/markdown"} in shown


def test_a_rank_that_clears_its_output_clears_its_section(kernel):
    cell = kernel.ok(
        "%%mesh --layout columns\nfrom IPython.display import HTML, clear_output\n"
        "for step in range(3):\n"
        "    print('step', step); display(HTML(f'<b>{step}</b>'))\n"
        "    if rank and step < 2: clear_output(wait=True)"
    )
    data = pictures(cell)[-1]
    assert data["text/html"].count("<b>2</b>") == 4
    assert data["text/html"].count("<b>0</b>") == 1
    assert "[1]\nstep 2\n" in data["text/plain"]


def test_a_cell_that_fails_or_is_interrupted_keeps_its_sections(kernel):
    failed = kernel.run("%%mesh --layout ranks\nprint('before'); 1 / rank")
    assert "ZeroDivisionError" in failed.error
    assert pictures(failed)[-1]["text/plain"].startswith("[0] before\n[1]")
    cell = kernel.start("%%mesh --layout ranks\nprint('started')\nimport time; time.sleep(30)")
    started = "\n".join(f"[{r}] started" for r in range(4))
    kernel.until(lambda: cell.displays and pictures(cell)[-1]["text/plain"] == started)
    kernel.interrupt()
    kernel.finish(cell)
    assert cell.status == "error"
    assert pictures(cell)[-1]["text/plain"] == started


def test_a_cell_in_the_background_is_drawn_to_its_end(kernel):
    cell = kernel.ok("%%mesh -a -o run --layout ranks\nimport time; time.sleep(0.3); print('done')")
    kernel.ok("run.wait()")
    whole = "\n".join(f"[{rank}] done" for rank in range(4))
    drawings = lambda: cell.contents("display_data", "update_display_data")
    kernel.until(lambda: whole in [one["data"]["text/plain"] for one in drawings()])


@pytest.mark.parametrize("layout", ["fold", "columns"])
def test_hundred_lines_of_four_ranks_cost_few_bytes(kernel, layout):
    cell = kernel.ok(
        f"%%mesh --layout {layout}\nimport time\n"
        "for step in range(100):\n    print(f'{rank} {step:3} ' + 'x' * 94); time.sleep(0.02)"
    )
    assert iopub_bytes(cell) < 120 * 1024
    assert len(cell.messages) < 40


@pytest.mark.slow
def test_a_saved_notebook_has_the_last_state_alone(tmp_path):
    cells = ["%mesh up --gpus 2", "%%mesh --layout columns\nprint('hi', rank)", "%mesh down"]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(notebook, kernel_name="monarch", timeout=60).execute(cwd=str(tmp_path))
    [output] = notebook.cells[1].outputs
    assert output.data["text/plain"] == "[0] hi 0\n[1] hi 1"


def test_a_terminal_gets_one_display_in_the_end():
    sink = Recorder()
    sink.redraws = False
    output = CellOutput(sink)
    output.expect("m", range(2), 2, Layout("ranks"))
    for rank in range(2):
        output.add(OutputEvent(1, rank, "m", 2, "stdout", "x\n"))
        output.flush()
    assert sink.sent == []
    output.conclude("m", {})
    output.end()
    [(kind, data)] = sink.sent
    assert (kind, data["text/plain"]) == ("display_data", "[0] x\n[1] x")
