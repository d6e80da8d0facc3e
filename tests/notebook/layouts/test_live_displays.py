"""Displays of ranks that change: `display_id`, `update_display`, `clear_output`."""

import weakref
from typing import Any

import pytest

from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.notebook.layouts.live_displays import MAX_ITEMS
from monarch_nb.notebook.output.cell_output import CellOutput
from tests.kernel.client import Cell
from tests.notebook.output.test_outputs import Clock

FIRST_CELLS = ["%mesh up --gpus 2"]

SIZE = 4
IMAGE = {"image/png": "aGk=", "text/plain": "<Figure>"}


class Page:
    """A sink that keeps what a front end would have on the screen, as plain text."""

    redraws = True

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.clears_next = False

    def stream(self, _: str, text: str) -> None:
        self._add({"text/plain": text.rstrip("\n")})

    def display(self, kind: str, content: Any) -> None:
        if kind == "clear_output":
            self.clears_next = content["wait"]
            if not content["wait"]:
                self.outputs.clear()
            return
        id_ = content.get("transient", {}).get("display_id")
        if kind == "update_display_data":
            for one in self.outputs:
                if one["id"] == id_:
                    one["data"] = content["data"]
        else:
            self._add(content["data"], id_)

    def _add(self, data: dict[str, Any], id_: Any = None) -> None:
        if self.clears_next:
            self.outputs.clear()
        self.clears_next = False
        self.outputs.append({"id": id_, "data": data})

    @property
    def lines(self) -> list[str]:
        texts = [one["data"]["text/plain"] for one in self.outputs]
        return [line for text in texts for line in text.split("\n") if line]


class Ranks:
    """What ranks of a mesh send."""

    def __init__(self) -> None:
        self.page = Page()
        self.clock = Clock()
        self.output = CellOutput(self.page, self.clock)
        self.output.expect("m", range(SIZE), SIZE)

    def send(self, rank: int, content: dict[str, Any] | None, text: str = "") -> None:
        stream = "stdout" if content is None else "display"
        self.output.add(OutputEvent(1, rank, "m", SIZE, stream, text, content or {}))

    def print(self, rank: int, text: str) -> None:
        self.send(rank, None, text)

    def show(self, rank: int, data: Any, id_: str = "", kind: str = "display_data") -> None:
        data = {"text/plain": data} if isinstance(data, str) else data
        transient = {"display_id": id_} if id_ else {}
        self.send(rank, {"type": kind, "data": data, "metadata": {}, "transient": transient})

    def update(self, rank: int, data: Any, id_: str) -> None:
        self.show(rank, data, id_, "update_display_data")

    def clear(self, rank: int, wait: bool = True) -> None:
        self.send(rank, {"type": "clear_output", "wait": wait})

    def lines(self) -> list[str]:
        """What is on the screen a while later."""
        for _ in range(6):
            self.clock.now += 0.2
            self.output.flush()
        return self.page.lines


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


ALL = range(SIZE)


def test_the_same_id_on_several_ranks_is_a_display_of_each(ranks):
    for rank in ALL:
        ranks.show(rank, f"loss {rank}", "loss")
    assert ranks.lines() == ["[0] loss 0", "[1] loss 1", "[2] loss 2", "[3] loss 3"]
    ranks.update(2, "loss 0.1", "loss")
    assert ranks.lines() == ["[0] loss 0", "[1] loss 1", "[2] loss 0.1", "[3] loss 3"]


def test_equal_updates_are_shown_once(ranks):
    for rank in ALL:
        ranks.show(rank, "epoch 0", f"{rank:032x}")  # as `display_id=True` makes them up
    assert ranks.lines() == ["[0-3] epoch 0"]
    for rank in ALL:
        ranks.update(rank, "epoch 1", f"{rank:032x}")
    assert ranks.lines() == ["[0-3] epoch 1"]
    ranks.update(3, "epoch 2", f"{3:032x}")
    assert ranks.lines() == ["[0-2] epoch 1", "[3] epoch 2"]


def test_an_update_of_something_that_was_never_shown_shows_nothing(ranks):
    ranks.update(0, "lost", "nobody")
    assert ranks.lines() == []


def test_figures_that_change_are_drawn_in_one_display(ranks):
    for rank in ALL:
        ranks.show(rank, {**IMAGE, "image/png": "aaaa" if rank else "bbbb"}, "figure")
    ranks.lines()
    [drawn] = ranks.page.outputs
    assert drawn["data"]["text/html"].count("<img") == 2
    assert "[1-3]" in drawn["data"]["text/html"]


def test_an_image_cannot_break_out_of_its_picture(ranks):
    ranks.show(0, {"text/plain": "x", "image/png": '"><script>alert(1)</script>'}, "figure")
    ranks.show(1, {"text/plain": "<b>", "image/svg+xml": "<svg onload=alert(1)/>"}, "figure")
    ranks.lines()
    page = ranks.page.outputs[-1]["data"]["text/html"]
    assert "<script" not in page
    assert "<svg" not in page


def test_views_of_widgets_stay_apart(ranks):
    for rank in (0, 1):
        view = {"application/vnd.jupyter.widget-view+json": {"model_id": str(rank)}}
        ranks.show(rank, {**view, "text/plain": f"slider {rank}"}, "view")
    assert ranks.lines() == ["[0]", "[0] slider 0", "[1]", "[1] slider 1"]


def test_a_rank_that_clears_its_output_leaves_that_of_others(ranks):
    for rank in ALL:
        ranks.print(rank, f"start {rank}\n")
    ranks.lines()
    for step in range(3):
        ranks.clear(1)
        ranks.print(1, f"step {step}\n")
        ranks.show(1, "a picture")
        ranks.print(2, f"line {step}\n")
        ranks.lines()
    shown = ranks.lines()
    assert [line for line in shown if line.startswith("[0]")] == ["[0] start 0"]
    assert [line for line in shown if line.startswith("[2]")][1:] == [
        "[2] line 0",
        "[2] line 1",
        "[2] line 2",
    ]
    assert shown.count("[1]") == 1
    assert "step 2" in shown
    assert "step 1" not in shown
    assert "a picture" in shown


def test_when_all_ranks_clear_their_output_the_cell_is_empty(ranks):
    for rank in ALL:
        ranks.print(rank, "old\n")
    assert ranks.lines() == ["[0-3] old"]
    for rank in ALL:
        ranks.clear(rank)
        ranks.print(rank, "new\n")
    assert ranks.lines() == ["[0-3] new"]
    for step in range(3):
        for rank in ALL:
            ranks.clear(rank)
            ranks.print(rank, f"step {step}, rank {rank % 2}\n")
    ranks.output.end()
    assert ranks.page.lines == ["[0,2] step 2, rank 0", "[1,3] step 2, rank 1"]


def test_ranks_that_clear_one_after_the_other_end_up_the_same(ranks):
    for rank in ALL:
        ranks.print(rank, "old\n")
    ranks.lines()
    for rank in ALL:
        ranks.clear(rank, wait=False)
        ranks.print(rank, "new\n")
        ranks.lines()
    assert ranks.lines() == ["[0-3] new"]


def test_a_cleared_output_is_bounded(ranks):
    ranks.clear(0)
    for number in range(100):
        ranks.show(0, f"picture {number}")
    ranks.print(0, "x" * 1_000_000)
    shown = ranks.lines()
    assert len(shown) <= MAX_ITEMS + 2
    assert len("".join(shown)) < 11_000


def test_a_progress_line_shows_its_last_state(ranks):
    ranks.clear(0)
    ranks.print(0, "\r10 %\r20 %")
    ranks.print(0, "\r30 %")
    assert ranks.lines() == ["[0] 30 %"]


# ------------------------------------------------------------------------------- with real ranks


def screen(*cells: Cell) -> list[str]:
    """What a front end has on its screen below a cell."""
    page = Page()
    for message in (m for cell in cells for m in cell.messages):
        content, kind = message["content"], message["msg_type"]
        if kind == "stream":
            page.stream("", content["text"])
        elif kind in ("display_data", "update_display_data", "clear_output"):
            page.display(kind, content)
    return page.lines


def test_handles_of_ranks_are_updated_by_later_cells(kernel):
    shown = kernel.ok("%%mesh\nhandle = display(f'start {rank}', display_id=True)")
    assert screen(shown) == ["[0] 'start 0'", "[1] 'start 1'"]
    kernel.ok("%%mesh\nhandle.update('done')")
    kernel.until(lambda: screen(shown) == ["[0-1] 'done'"])


def test_clear_output_on_one_rank(kernel):
    cell = kernel.ok(
        "%%mesh\nfrom IPython.display import clear_output\nprint('kept', rank)\n"
        "for step in range(5):\n"
        "    if rank == 1:\n        clear_output(wait=True)\n        print('step', step)"
    )
    assert screen(cell) == ["[0] kept 0", "[1] kept 1", "[1] step 4"]


def test_an_animation_on_all_ranks_is_one_display(kernel):
    cell = kernel.ok(
        "%%mesh\nfrom IPython.display import HTML, clear_output, display\n"
        "for step in range(20):\n"
        "    clear_output(wait=True); display(HTML(f'<b>{step}</b>')); print('step', step)"
    )
    assert screen(cell)[-1] == "step 19"
    assert "step 18" not in screen(cell)
    assert len(cell.contents("display_data")) <= 3


class Picture(dict[str, str]):
    """A bundle that can be watched."""


def test_a_cell_long_ago_keeps_no_pictures():
    ranks = Ranks()
    picture = Picture({"text/plain": "<Figure>"})
    kept = weakref.ref(picture)
    ranks.send(0, {"type": "clear_output", "wait": False})
    ranks.show(0, picture)
    del picture
    ranks.output.forget()
    assert kept() is not None  # it runs on
    ranks.output.conclude("m", {})
    ranks.output.end()
    ranks.output.forget()
    assert kept() is None
