"""A loop without a mesh is a plain one; what is in cells is compiled for it."""

import ast

import pytest

from monarch_nb import elastic
from monarch_nb.worker.cells.loops import with_elastic_loops


def test_without_a_mesh_it_is_a_plain_loop():
    state = elastic.State(total=0)
    for each in elastic.run(state, until=5):
        assert each is state
        state.total += state.step
    assert (state.total, state.step) == (10, 5)


def test_it_begins_at_the_step_of_the_state():
    steps = [state.step for state in elastic.run(elastic.State(step=3), until=5)]
    assert steps == [3, 4]


def test_an_error_of_the_body_is_the_users():
    with pytest.raises(ZeroDivisionError):
        for _ in elastic.run(elastic.State(), until=5):
            1 / 0


def test_in_a_module_the_body_stands_in_with():
    loop = elastic.run(elastic.State(), until=3)
    seen = []
    for state in loop:
        with loop.step():
            seen.append(state.step)
    assert seen == [0, 1, 2]


class Loop:
    """Absorbs what it is told to, and remembers."""

    def __init__(self, steps: int, absorbs: type[BaseException]) -> None:
        self.left = steps
        self.absorbs = absorbs
        self.said: list[str] = []

    def run(self) -> "Loop":
        return self

    def __iter__(self) -> "Loop":
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def absorb(self, error: BaseException) -> bool:
        self.said.append(type(error).__name__)
        return isinstance(error, self.absorbs)

    def close(self) -> None:
        self.said.append("closed")


def ran(code: str, loop: Loop) -> dict[str, object]:
    names: dict[str, object] = {"elastic": loop, "seen": []}
    exec(compile(with_elastic_loops(ast.parse(code)), "cell", "exec"), names)
    return names


BODY = "for i in elastic.run():\n    seen.append(i)\n    {}\nelse:\n    seen.append('else')"


@pytest.mark.parametrize(
    "body, seen",
    [
        ("pass", [2, 1, 0, "else"]),
        ("continue", [2, 1, 0, "else"]),
        ("if i == 1: break", [2, 1]),
        ("if i == 1: raise RuntimeError", [2, 1, 0, "else"]),
    ],
)
def test_in_a_cell_the_loop_sees_what_its_body_raises(body, seen):
    loop = Loop(3, RuntimeError)
    assert ran(BODY.format(body), loop)["seen"] == seen
    assert loop.said[-1] == "closed"
    assert loop.said[:-1] == (["RuntimeError"] if "raise" in body else [])


def test_what_it_does_not_absorb_is_raised():
    loop = Loop(3, RuntimeError)
    with pytest.raises(ZeroDivisionError):
        ran(BODY.format("1 / 0"), loop)
    assert loop.said == ["ZeroDivisionError", "closed"]


def test_a_function_may_return_from_it():
    loop = Loop(3, RuntimeError)
    code = "def f():\n    for i in elastic.run():\n        return i\nfound = f()"
    assert ran(code, loop)["found"] == 2
    assert loop.said == ["closed"]


def test_other_loops_are_as_they_were():
    code = "for i in range(3):\n    for j in other.run():\n        pass"
    assert ast.dump(with_elastic_loops(ast.parse(code))) == ast.dump(ast.parse(code))


def test_lines_stay_where_they_were():
    loop = Loop(3, KeyError)
    with pytest.raises(ZeroDivisionError) as caught:
        ran("\n\nfor i in elastic.run():\n    x = 1\n    1 / 0", loop)
    assert caught.traceback[-1].lineno + 1 == 5
