"""Status and values as a reader sees them, in text and in HTML."""

from types import SimpleNamespace
from typing import Any

from monarch_nb.control.status.snapshots import RankStatus
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.text.units import duration
from monarch_nb.notebook.display.display import StatusView, mesh_html

NOW = 100.0


def rank(
    number: int, state: str = "idle", what: str = "", detail: str = "", since: float = 0.0
) -> Any:
    coords = {"hosts": 0, "gpus": number}
    return RankStatus(number, coords, 1000 + number, 0, state, what, since, detail)


def mesh(*ranks: Any, name: str = "mesh0") -> Any:
    return SimpleNamespace(name=name, labels=("hosts", "gpus"), sizes=(1, len(ranks)), ranks=ranks)


def test_a_table_of_a_mesh():
    shown = mesh(
        rank(0),
        rank(1, "busy", "trainer.step", since=NOW - 12),
        rank(2, "exited", detail="killed by SIGKILL"),
    )
    assert StatusView([shown], NOW, "mesh0").text() == (
        "mesh0: 3 ranks, 1 idle, 1 busy, 1 exited; hosts=1 gpus=3 (current)\n"
        "rank   place            pid    state      for    doing\n"
        "──────────────────────────────────────────────────────────────────\n"
        "0      hosts=0 gpus=0   1000   ○ idle\n"
        "1      hosts=0 gpus=1   1001   ● busy     12 s   trainer.step\n"
        "2      hosts=0 gpus=2   1002   ✕ exited          killed by SIGKILL"
    )


def test_many_ranks_in_one_state_are_one_row():
    text = StatusView([mesh(*[rank(i) for i in range(99)], rank(99, "silent"))], NOW).text()
    assert len(text.splitlines()) == 5
    assert "0-98   99 ranks" in text
    assert "▲ silent" in text


def test_html_says_every_state_in_a_word_and_escapes_the_rest():
    nasty = "<script>alert(1)</script>"
    page = StatusView([mesh(rank(0, "busy", nasty), rank(1, nasty), name=nasty)], NOW).html()
    assert "<script" not in page
    assert "busy" in page
    assert "http" not in page


def test_meshes_show_their_repr():
    assert (
        mesh_html(ValueMesh)
        == "<code>&lt;class &#x27;monarch_nb.core.shape.values.ValueMesh&#x27;&gt;</code>"
    )


def test_durations():
    texts = [duration(s) for s in (0.04, 9.9, 12, 119, 600, 36000)]
    assert texts == ["0.0 s", "9.9 s", "12 s", "119 s", "10 min", "10.0 h"]
