"""Parameters as they are typed, and the cell that assigns them."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.control.batch import parameters

LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 0.001),
        ("3", 3),
        ("true", True),
        ("True", True),
        ("null", None),
        ("None", None),
        ("small", "small"),
        ("a=b", "a=b"),
        ("", ""),
        ("'3'", "3"),
        ("0123", "0123"),
        ("NaN", "NaN"),
        ("inf", "inf"),
        ("1e999", "1e999"),
        ("[1e999]", "[1e999]"),
        ("[" * 300 + "]" * 300, "[" * 300 + "]" * 300),
        ("0x" + "f" * 5000, "0x" + "f" * 5000),
        ("[1, 2]", [1, 2]),
        ('{"deep": [true, null]}', {"deep": [True, None]}),
        ("(1, 'x')", (1, "x")),
        ("__import__('os')", "__import__('os')"),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_values_are_literals_or_texts(text, value):
    assert parameters.values([f"x={text}"]) == {"x": value}


@given(LITERALS)
def test_every_literal_comes_back_as_it_is(value):
    found = parameters.values([f"x={value!r}"])
    body = parameters.source(found)
    assert ast.literal_eval(body.partition(" = ")[2]) == value


@given(st.text())
def test_whatever_is_typed_is_assigned(text):
    found = parameters.values([f"x={text}"])
    scope: dict[str, object] = {}
    exec(parameters.source(found), scope)
    assert scope["x"] == found["x"]


def test_a_name_is_that_which_python_makes_of_it():
    assert parameters.values(["\N{LATIN SMALL LIGATURE FI}=1"]) == {"fi": 1}


@pytest.mark.parametrize("text", ["lr", "=3", "a b=3", "class=3", "1x=3"])
def test_what_is_no_name_is_refused(text):
    with pytest.raises(ValueError, match="write it as -p lr=1e-3"):
        parameters.values([text])


def test_names_are_those_that_the_cell_assigns():
    cell = "%%mesh gpus=0\n# of a run\nlr = 0.1\nsteps: int = 3\na, b = c = 1, 2\n%time\nd[0] = 1\n"
    assert parameters.assigned(cell) == ["lr", "steps", "a", "b", "c"]
    with pytest.raises(ValueError, match="Did you mean steps.* lr, steps, a, b, c"):
        parameters.check(["step"], cell)


def test_the_cell_runs_where_that_of_the_notebook_does():
    assert parameters.source({"lr": 0.5}) == "# Parameters\nlr = 0.5"
    assert parameters.source({"lr": 0.5}, "lr = 1") == "# Parameters\nlr = 0.5"
    on_ranks = parameters.source({"lr": 0.5}, "%%mesh gpus=0:2\nlr = 1")
    assert on_ranks == "%%mesh gpus=0:2\n# Parameters\nlr = 0.5"
