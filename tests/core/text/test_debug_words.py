"""What lines at a debugger's prompt mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.control.debug.commands import Said, at_mesh, at_rank, ranks_at, read_cast
from monarch_nb.core.shape.selection import SelectionError


@pytest.mark.parametrize(
    "line, said",
    [
        ("ranks", Said("ranks")),
        ("ranks + 1", Said("pdb", "ranks + 1")),
        ("rank", Said("pdb", "rank")),
        ("rank 12", Said("rank", "12")),
        ("attach 13", Said("rank", "13")),
        ("attach debugee 13", Said("rank", "debugee 13")),
        ("attach = 13", Said("pdb", "attach = 13")),
        ("rank = 3", Said("pdb", "rank = 3")),
        ("cast 0-2 n", Said("cast", "0-2 n")),
        ("cast = 3", Said("pdb", "cast = 3")),
        ("cast", Said("pdb", "cast")),
        ("where", Said("pdb", "where")),
        ("where*", Said("where*")),
        ("c", Said("pdb", "c")),
        ("continue", Said("continue")),
        ("detach", Said("detach")),
        ("help", Said("help")),
        ("help step", Said("pdb", "help step")),
        ("", Said("pdb", "")),
    ],
)
def test_words_at_a_rank(line, said):
    assert at_rank(line) == said


@pytest.mark.parametrize(
    "line, said",
    [
        ("l", Said("ranks")),
        ("list", Said("ranks")),
        ("attach trainer 3", Said("rank", "trainer 3")),
        ("a 3", Said("rank", "3")),
        ("c", Said("continue")),
        ("q", Said("quit")),
        ("", Said("")),
        ("p x", Said("wrong", "p x")),
    ],
)
def test_words_off_the_ranks(line, said):
    assert at_mesh(line) == said


@given(st.text())
def test_every_line_means_something(line):
    assert at_rank(line).word
    assert isinstance(at_mesh(line), Said)


@pytest.mark.parametrize(
    "text, words, command",
    [
        ("0-2 n", ("0-2",), "n"),
        ("all p loss", ("all",), "p loss"),
        ("gpus=0:2 hosts=1 p x", ("gpus=0:2", "hosts=1"), "p x"),
        ("gpus=0:2 x=1", ("gpus=0:2",), "x=1"),
        ("[0, 2] n", ("[0,2]",), "n"),
        ("::2 where", ("::2",), "where"),
    ],
)
def test_cast_as_cells_select(text, words, command):
    cast = read_cast(text, ["hosts", "gpus"])
    assert (cast.words, cast.command, cast.places) == (words, command, "")


@pytest.mark.parametrize(
    "text, actor, places, command",
    [
        ("trainer ranks(1) n", "trainer", "1", "n"),
        ("ranks(0:2) p x", "", "0:2", "p x"),
        ("trainer ranks(dim=1, other=(1,4)) p f(x)", "trainer", "dim=1, other=(1,4)", "p f(x)"),
    ],
)
def test_cast_as_monarch_has_it(text, actor, places, command):
    cast = read_cast(text, [])
    assert (cast.actor, cast.places, cast.command) == (actor, places, command)


def test_a_cast_without_a_command():
    for text in ("0-2", "ranks(1)", "[0,1]"):
        with pytest.raises(SelectionError, match="cast needs a command"):
            read_cast(text, [])


@pytest.mark.parametrize(
    "places, ranks",
    [
        ("1", [1]),
        ("1,4", [1, 4]),
        ("2:8:3", [2, 5]),
        (":2", [0, 1]),
        ("gpus=1", [1, 5]),
        ("gpus=(0,3)", [0, 3, 4, 7]),
        ("hosts=1, gpus=0::2", [4, 6]),
    ],
)
def test_places_of_monarch(places, ranks):
    assert ranks_at(places, {"hosts": 2, "gpus": 4}) == ranks


@pytest.mark.parametrize("places", ["", "x", "9", "gpus=7", "racks=1", "1,,2", "0:2:0"])
def test_places_that_are_wrong(places):
    sizes = {"hosts": 2, "gpus": 4}
    if places == "0:2:0":
        assert ranks_at(places, sizes) == [0, 1]
        return
    with pytest.raises(SelectionError):
        ranks_at(places, sizes)
