"""Which cells ranks that were started again run, and what is said of them."""

import pytest

from monarch_nb.control.cell_history import CellHistory, PastCell
from monarch_nb.core.wire.messages.cells import RunCell
from monarch_nb.notebook.cells.past_cells import choose, number_words, offer, report
from monarch_nb.notebook.errors import MagicError

IMPORTS, MODEL, TRAIN, GROUP, STEP = (
    "import torch",
    "model = torch.nn.Linear(2, 2)",
    "for _ in range(3):\n    model(torch.ones(2))",
    "import torch.distributed as dist\ndist.init_process_group()",
    "def step():\n    for x in range(3):\n        pass",
)


def cell(number: int, code: str, *lacking: int) -> PastCell:
    return PastCell(RunCell(code, what=f"cell In[{number}]"), lacking)


PAST = [
    cell(2, IMPORTS, 1),
    cell(3, MODEL, 1),
    cell(5, TRAIN, 1),
    cell(6, GROUP, 1),
    cell(8, STEP, 1),
    cell(9, "x = 1"),
]


def typed(past, ranks, name) -> str:
    return offer(past, ranks, name).typed


def numbers(found) -> list[str]:
    return [each.cell.what for each in found]


def test_what_defines_is_offered_and_work_is_not():
    assert typed(PAST, [1], None) == "%mesh replay 2-3,8 --ranks 1"
    assert typed(PAST, [1], "a b") == "%mesh replay 2-3,8 --ranks 1 --name 'a b'"
    chosen = choose(PAST, None, None)
    assert numbers(chosen.run) == ["cell In[2]", "cell In[3]", "cell In[8]"]
    assert report(chosen, PAST) == (
        "In[2-3,8] ran again on rank 1; left out: In[5-6], with work, process groups, or names "
        "that no such cell defines. %mesh replay 5-6 runs that too"
    )


def test_what_needs_data_that_was_sent_or_computed_is_left_out():
    past = [
        cell(2, "x = rank", 1),
        cell(3, "total = part.sum()", 1),
        cell(4, "half = total / 2", 1),
        cell(5, "for n in range(3):\n    last = n", 1),
        cell(6, "end = last", 1),
        cell(7, "def late():\n    return last", 1),
        cell(8, "y = new"),
        cell(9, "z = y", 1),
    ]
    assert typed(past, [1], None) == "%mesh replay 2,7,9 --ranks 1"
    assert typed([*past, cell(10, "from data import *", 1)], [1], None) == (
        "%mesh replay 2-4,6-7,9-10 --ranks 1"
    )


def test_all_ranks_that_lack_something_are_offered_what_they_lack():
    found = offer(PAST, None, None)
    assert found == ("%mesh replay 2-3,8 --ranks 1", "2-3,8", (1,))
    past = [cell(2, "x = 1", 1), cell(3, "y = x", 1, 3)]
    assert offer(past, None, None) == ("%mesh replay 2-3", "2-3", (1, 3)), "each where it lacks"


def test_nothing_is_offered_where_nothing_is_lacking():
    assert offer(PAST, [0], None) is None
    assert offer([], [1], None) is None
    assert offer([cell(5, TRAIN, 1)], [1], None) is None


def test_ranks_that_lack_different_cells_have_their_own():
    past = [cell(2, IMPORTS, 0, 1), cell(3, MODEL, 1)]
    assert typed(past, [0, 1], None) == "%mesh replay 2-3"
    assert [each.lacking for each in choose(past, None, None).run] == [(0, 1), (1,)]
    assert [each.lacking for each in choose(past, None, [0]).run] == [(0,)]


def test_cells_are_named_by_their_numbers():
    chosen = choose(PAST, (5, 9), (0, 1))
    assert [(each.cell.code, each.lacking) for each in chosen.run] == [
        (TRAIN, (0, 1)),
        ("x = 1", (0, 1)),
    ]
    assert numbers(choose(PAST, (2, 3, 4), None).run) == ["cell In[2]", "cell In[3]"]
    assert number_words(chosen.run, PAST) == "5,9"


@pytest.mark.parametrize(
    "asked, words",
    [
        (((7,), None), r"no such cell has run on the mesh. Those that have: In\[2-9\]"),
        (((9,), None), "its ranks have run it, .* --ranks says on which"),
        ((None, (0,)), "nothing is lacking on rank 0 of what it has run before"),
    ],
)
def test_what_cannot_be_chosen_says_what_to_type(asked, words):
    with pytest.raises(MagicError, match=words):
        choose(PAST, *asked)


def test_new_processes_lack_what_those_before_have_run_until_they_run_it():
    history = CellHistory()
    imports, model = (
        RunCell(code, what=f"cell In[{n}]") for n, code in enumerate((IMPORTS, MODEL))
    )
    history.add(7, imports, {0: 10, 1: 11})
    history.add(7, model, {1: 11})
    lacking = lambda *processes: [each.lacking for each in history.past(7, processes)]
    assert lacking(10, 11) == [(), ()]
    assert lacking(20, 21) == [(0, 1), (1,)]
    history.add(7, imports, {1: 21})
    assert lacking(20, 21) == [(0,), (1,)]
    assert [each.cell for each in history.past(7, (20, 21))] == [imports, model], "in their order"
    assert history.past(8, (20,)) == []
