"""What stands below a cell is kept as JupyterLab's output area would have it."""

from typing import Any

import pytest

from monarch_nb.notebook.output.kept import MAX_BYTES, MAX_CELLS, KeptOutputs
from tests.support import code_until

FIRST_CELLS = ["%mesh up --gpus 2"]


class Kernel:
    """One that sends messages below cells that a page has asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kept = KeptOutputs(lambda: self.now)
        self.sent = 0

    def request(self, name: str) -> dict[str, Any]:
        return {
            "header": {"msg_id": name, "session": "page"},
            "metadata": {"cellId": f"id-{name}"},
            "content": {"code": "1"},
        }

    def begin(self, name: str = "a") -> None:
        self.kept.begin(self.request(name))

    def send(self, kind: str, under: str = "a", **content: Any) -> None:
        self.sent += 1
        self.kept.take(kind, content, f"m{self.sent}", under)

    def print(self, text: str, stream: str = "stdout", under: str = "a") -> None:
        self.send("stream", under, name=stream, text=text)

    def show(
        self, text: str, display_id: str = "", kind: str = "display_data", **keys: Any
    ) -> None:
        transient = {"display_id": display_id} if display_id else {}
        data = {"data": {"text/plain": text}, "metadata": {}, "transient": transient}
        self.send(kind, **{**data, **keys})

    def cell(self, since: float = -1.0) -> dict[str, Any]:
        [found] = self.kept.since(since)
        return found

    def below(self) -> list[str]:
        outputs = self.cell()["outputs"]
        return [one.get("text") or one["data"]["text/plain"] for one in outputs]


@pytest.fixture
def fake() -> Kernel:
    made = Kernel()
    made.begin()
    return made


def test_text_of_one_stream_is_one_output(fake):
    fake.print("a\n")
    fake.print("b\nc")
    fake.print("d\n")
    fake.print("warning", "stderr")
    fake.show("<Figure>")
    fake.print("e\n")
    assert fake.below() == ["a\nb\ncd\n", "warning", "<Figure>", "e\n"]


def test_a_bar_that_is_redrawn_for_hours_is_its_last_state(fake):
    fake.print("begin\n")
    for percent in range(10_000):
        fake.print(f"\rtrain {percent // 100:3} %")
    fake.print("\n")
    fake.print("abcdef\rxyz")
    assert fake.below() == ["begin\ntrain  99 %\nxyzdef"]
    fake.print("\r")
    fake.print("12")
    assert fake.below() == ["begin\ntrain  99 %\n12zdef"]


def test_a_display_that_changes_is_its_last_state(fake):
    fake.show("one", "d")
    fake.show("other", "e")
    fake.show("two", "d", "update_display_data")
    fake.show("unknown", "f", "update_display_data")
    assert fake.below() == ["two", "other"]
    fake.show("three", "d", "update_display_data", under="another cell")
    assert fake.below() == ["three", "other"]
    assert fake.cell()["outputs"][0]["transient"] == {"display_id": "d"}


def test_what_was_cleared_is_gone(fake):
    fake.print("a")
    fake.send("clear_output", wait=True)
    assert fake.below() == ["a"]
    assert fake.cell()["clears"]
    fake.print("b")
    assert fake.below() == ["b"]
    fake.send("clear_output", wait=False)
    assert fake.below() == []


def test_an_error_and_the_number_are_known(fake):
    fake.send("execute_input", execution_count=7, code="1 / 0")
    fake.send("error", ename="E", evalue="v", traceback=["t"])
    cell = fake.cell()
    assert cell["outputs"] == [
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t"]}
    ]
    assert (cell["number"], cell["running"], cell["id"]) == (7, True, "id-a")
    assert (cell["message"], cell["session"], cell["code"]) == ("a", "page", "1")
    assert cell["messages"] == ["m1", "m2"]


def test_cells_that_have_changed_lately_are_told_too(fake):
    fake.now = 10.0
    fake.kept.end(fake.request("a"))
    fake.now = 20.0
    assert fake.kept.since(15.0) == []
    assert not fake.cell(since=9.0)["running"]
    fake.print("late\n")  # a cell in the background
    assert fake.cell(since=15.0)["outputs"][0]["text"] == "late\n"


def test_cells_that_no_page_has_sent_are_not_kept(fake):
    fake.kept.begin({"header": {"msg_id": "b"}, "metadata": {}})
    fake.print("x", under="b")
    assert fake.cell()["id"] == "id-a"


def test_too_much_is_cut_at_the_beginning_in_words(fake):
    fake.show("x" * 1_000)
    line = f"{'y' * 99}\n"
    for _ in range(3 * MAX_BYTES // 10_000):
        fake.print(line * 100)
    note, text = fake.below()
    assert note == (
        "... the first 16 MB of this cell's output are not shown: the page was loaded again, and "
        "the kernel keeps the last 8 MB\n"
    )
    assert text.endswith(line)
    assert len(text) == MAX_BYTES


def test_cells_that_have_ended_make_room_first(fake):
    fake.print("x" * (MAX_BYTES // 2))
    fake.kept.end(fake.request("a"))
    fake.begin("b")
    fake.print("y" * (MAX_BYTES // 2 + 1), under="b")
    [cell] = fake.kept.since(-1.0)
    assert (cell["id"], len(cell["outputs"])) == ("id-b", 1)
    for number in range(2 * MAX_CELLS):
        fake.begin(f"c{number}")
    assert len(fake.kept.since(-1.0)) == MAX_CELLS


def test_a_cell_of_a_kernel_is_kept_while_it_runs(kernel, tmp_path):
    seen = tmp_path / "seen"
    kept = "get_ipython().kernel.session.kept"
    code = f"print('early'); display({{'text/plain': 'x'}}, raw=True)\n{code_until(seen)}\n1 / 0"
    cell = kernel.start(code, {"cellId": "cell-1"})
    kernel.until(lambda: cell.displays)
    seen.touch()
    kernel.finish(cell)
    mesh = kernel.start("%%mesh\nprint('on', rank)", {"cellId": "cell-2"})
    kernel.finish(mesh)
    told = kernel.ok(f"for one in {kept}.since(0): print(one['id'], one['running'], one['number'])")
    count = cell.contents("execute_input")[0]["execution_count"]
    assert told.text() == f"cell-1 False {count}\ncell-2 False {count + 1}\n"
    shown = kernel.ok(
        f"for one in {kept}.since(0):\n"
        "    for each in one['outputs']: print(each['output_type'], each.get('text', '-').strip())"
    )
    assert shown.text().splitlines() == [
        "stream early", "display_data -", "error -", "stream [0] on 0", "[1] on 1",
    ]  # fmt: skip
