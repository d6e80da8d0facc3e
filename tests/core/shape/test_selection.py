"""Selections of ranks: `gpus=0:2`, `hosts=0 gpus=::2`, `0,2`, `0-3`, `all`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.shape import selection
from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.shape.selection import SelectionError
from tests.notebook.fake_client import FakeControl, FakeMesh


def mesh(**sizes: int) -> FakeMesh:
    return FakeMesh(FakeControl(), "mesh0", Extent.from_dict(sizes).region.as_shape())


def ranks(whole: FakeMesh, text: str) -> list[int]:
    return [rank for part in selection.parts(whole, text.split()) for rank in part.ranks]


@pytest.mark.parametrize("text, expected", [
    ("", range(8)),
    ("all", range(8)),
    ("gpus=0", [0, 4]),
    ("gpus=0:2", [0, 1, 4, 5]),
    ("gpus=2:", [2, 3, 6, 7]),
    ("gpus=::2", [0, 2, 4, 6]),
    ("hosts=1 gpus=::2", [4, 6]),
    ("hosts=1 gpus=3", [7]),
    ("5", [5]),
    ("0,2", [0, 2]),
    ("0-3", [0, 1, 2, 3]),
    ("0,1,5", [0, 1, 5]),
    ("5,0", [0, 5]),
    ("0-7", range(8)),
    ("[0,2]", [0, 2]),
    ("[0, 2]", [0, 2]),
    ("::2", [0, 2, 4, 6]),
    ("1:4", [1, 2, 3]),
    ("-1", [7]),
    ("0,-2", [0, 6]),
])  # fmt: skip
def test_ranks_of_a_selection(text, expected):
    assert ranks(mesh(hosts=2, gpus=4), text) == list(expected)


@pytest.mark.parametrize("text, says", [
    ("gpus=4", "gpus=4 is outside the mesh: gpus goes from 0 to 3"),
    ("gpus=2:6", "gpus has 4 places"),
    ("gpus=2:2", "empty or outside"),
    ("gpus=::0", "empty or outside"),
    ("gpus=", "cannot read gpus="),
    ("gpus=-1", "cannot read gpus=-1"),
    ("nodes=0", "no axis 'nodes'; its axes are hosts=2, gpus=4"),
    ("gpus=0 gpus=1", "gpus is selected twice"),
    ("gpus=0 1", "mixes several ways"),
    ("0 1", "mixes several ways"),
    ("8", "no rank 8 among its 8, 0 to 7"),
    ("0,9,11", "no rank 9, 11"),
    ("-9", "no rank -9"),
    ("2:9", "2:9 is empty or outside the mesh: it has 8 ranks, 0 to 7"),
    ("[0,2", "'[0,2' selects no ranks"),
    ("everything", "'everything' selects no ranks"),
    ("0-99999999999", "0-99999999999 is outside the mesh: no rank 8 among its 8, 0 to 7"),
])  # fmt: skip
def test_a_selection_that_matches_nothing_is_refused_in_one_line(text, says):
    with pytest.raises(SelectionError) as caught:
        ranks(mesh(hosts=2, gpus=4), text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.sets(st.integers(0, 11), min_size=1))
def test_any_set_of_ranks_can_be_selected_exactly(wanted):
    text = ",".join(map(str, wanted))
    assert ranks(mesh(a=3, b=4), text) == sorted(wanted)


@pytest.mark.slow
@given(st.text(max_size=12))
def test_no_text_breaks_it(text):
    try:
        found = ranks(mesh(gpus=4), text)
    except SelectionError:
        return
    assert set(found) <= set(range(4))


def test_an_irregular_selection_becomes_several_parts():
    parts = selection.parts(mesh(gpus=8), ["0,1,5"])
    assert [part.ranks for part in parts] == [[0, 1], [5]]
