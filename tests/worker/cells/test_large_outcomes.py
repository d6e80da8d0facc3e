"""What a cell ends with and shows may be large: a figure with its data, a film."""

import pytest

from monarch_nb.control import cells
from monarch_nb.control.client import client

pytestmark = pytest.mark.usefixtures("mesh_runtime")

CHARACTERS = 70_000_000  # more than the 64 MiB that one frame of a stream may have
MIME = "application/vnd.figure+json"
FIGURE = f"""
class Figure:
    def _repr_mimebundle_(self, **_):
        return {{"{MIME}": "x" * {CHARACTERS}}}
"""


@pytest.fixture(scope="module")
def mesh(mesh_runtime):
    from monarch_nb import this_host

    made = this_host().spawn_procs(per_host={"gpus": 1})
    yield made
    made.stop().get(timeout=10)


def run(mesh, code):
    ended = cells.run_cell(mesh, code, filename="cell", first_line=1, tag=0)
    assert ended.wait(20)
    return ended.outcomes[0]


def test_a_large_value_comes_whole(mesh):
    assert len(run(mesh, f"{FIGURE}\nFigure()").data["data"][MIME]) == CHARACTERS


def test_a_large_display_comes_whole_and_so_does_what_follows(mesh):
    shown = []
    client().output.listen(lambda event: shown.append(event.content.get("data", {})))
    assert run(mesh, f"{FIGURE}\ndisplay(Figure())\nrank").text == "0"
    assert len(shown[0][MIME]) == CHARACTERS
