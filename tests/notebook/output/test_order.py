"""What four ranks print and show at different moments: by rank, in the order of ranks, and soon."""

import time

import pytest

from tests.kernel.client import Cell

IMPORTS = """%%mesh
import time
import matplotlib.pyplot as plt, ipywidgets, pandas
plt.figure(); plt.close('all')
def late(unit_s): time.sleep([1, 3, 0, 2][rank] * unit_s)"""

FIRST_CELLS = ["%mesh up --gpus 4", IMPORTS]

pytestmark = pytest.mark.timeout(120)


def lines(cell: Cell) -> list[str]:
    return cell.text().splitlines()


def of(line: str) -> str:
    return line[: line.index("]") + 1]


def in_order(*texts: str) -> list[str]:
    """These lines of each rank, rank after rank."""
    return [f"[{rank}] {text.format(rank)}" for rank in range(4) for text in texts]


def test_a_burst_is_shown_rank_after_rank(kernel):
    cell = kernel.ok(
        "%%mesh\nlate(0.025)\nfor part in 'abc': print(part, rank)\nlate(0.025); time.sleep(0.5)"
    )
    assert lines(cell) == in_order("a {}", "b {}", "c {}")


def test_two_prints_a_step_are_not_torn_apart(kernel):
    cell = kernel.ok(
        "%%mesh\nstarted = time.time()\nfor step in range(3):\n    late(0.02)\n"
        "    print(f'step {step} of rank {rank}')\n    print(f'  loss {rank}.{step}')\n"
        "    time.sleep(max(started + 0.4 * (step + 1) - time.time(), 0))"
    )
    steps = [in_order(f"step {step} of rank {{}}", f"  loss {{}}.{step}") for step in range(3)]
    assert lines(cell) == [line for step in steps for line in step]


@pytest.mark.parametrize("code", [
    "print(pandas.DataFrame({'a': range(3), 'b': [7, rank, 7]}))",
    "%whos complex",
])  # fmt: skip
def test_a_table_stays_whole(kernel, code):
    kernel.ok("%%mesh\nfirst, mine, other = 1j, 1j * rank, 2j")
    cell = kernel.ok(f"%%mesh\nlate(0.025)\n{code}\ntime.sleep(0.5)")
    order = [of(line) for line in lines(cell)]
    assert order == sorted(order)
    assert order.count("[0]") == order.count("[3]") >= 4


def test_equal_lines_are_one_though_ranks_are_apart_and_one_prints_on_and_on(kernel):
    cell = kernel.ok(
        "%%mesh\nif rank == 3:\n    for tick in range(300): print('tick', tick); time.sleep(0.01)\n"
        "else:\n    for step in range(6):\n        late(0.03); print('step', step)\n"
        "        time.sleep(0.5 - 0.03 * [1, 3, 0, 2][rank])"
    )
    assert [line for line in lines(cell) if "step" in line] == [
        f"[0-2] step {step}" for step in range(6)
    ]


def test_figures_and_widgets_are_in_the_order_of_ranks(kernel):
    figures = kernel.ok("%%mesh\nlate(0.2)\nplt.plot([0, rank])\nplt.show()\nlate(0.1)").displays
    labels = [data["text/plain"] for data in figures if data["text/plain"].startswith("[")]
    assert labels == ["[0]", "[1]", "[2]", "[3]"]
    widgets = kernel.ok("%%mesh\nlate(0.1)\ndisplay(ipywidgets.IntSlider(rank))").displays
    assert [of(data["text/plain"]) for data in widgets[::2]] == ["[0]", "[1]", "[2]", "[3]"]


def test_a_line_is_there_within_a_fifth_of_a_second(kernel):
    waited = []
    for _ in range(3):
        cell = kernel.start("%%mesh\nif rank == 2: print('said', time.time())\ntime.sleep(0.6)")
        kernel.until(lambda cell=cell: cell.text())
        waited.append(time.time() - float(cell.text().split()[-1]))
        kernel.finish(cell)
    assert min(waited) < 0.2
