"""`mesh["x"]`, `mesh["x"] = value` and `mesh.scatter`, on real ranks."""

import pickle
import threading

import numpy as np
import pytest
import torch

from monarch_nb import (
    DecodeError,
    EncodeError,
    MeshError,
    ProcMesh,
    RankNameError,
    SupervisionError,
    ValueMesh,
)
from monarch_nb.control.cells import CellRun, run_cell
from tests import inside
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("mesh_runtime")


def run(mesh: ProcMesh, code: str, **options) -> CellRun:
    """Run a cell to its end."""
    ran = run_cell(mesh, code, filename="<cell>", first_line=1, tag=0, **options)
    assert ran.wait(20)
    return ran


def ok(mesh: ProcMesh, code: str, **options) -> list[str | None]:
    """The texts of the last expression."""
    ran = run(mesh, code, **options)
    assert [each.status for each in ran.outcomes.values()] == ["ok"] * len(mesh), ran.outcomes
    return [ran.outcomes[rank].text for rank in mesh.ranks]


# -------------------------------------------------------------------------------- there and back


def test_a_variable_is_set_on_every_rank_and_read_back(procs):
    procs["settings"] = {"lr": 0.1, "sizes": [1, 2]}
    assert ok(procs, "settings['lr'] += rank; settings['sizes']") == ["[1, 2]"] * 4
    found = procs["settings"]
    assert isinstance(found, ValueMesh)
    assert (found.sizes, [each["lr"] for each in found.values()]) == (
        {"gpus": 4},
        [0.1, 1.1, 2.1, 3.1],
    )
    assert found[{"gpus": 2}]["lr"] == 2.1


def test_a_slice_has_its_own_ranks(procs):
    procs["who"] = "all"
    procs.slice(gpus=slice(1, 3))["who"] = "middle"
    assert procs["who"].values() == ["all", "middle", "middle", "all"]
    some = procs.slice(gpus=slice(0, 4, 2))["who"]
    assert (some.sizes, some.values()) == ({"gpus": 2}, ["all", "middle"])
    assert procs.slice(gpus=3)["rank"].item() == 3


def test_what_cells_define_is_there(procs):
    ok(procs, "loss = rank / 2\nclass Net:\n    pass\nnet = Net()\nnet.rank = rank")
    assert procs["loss"].values() == [0.0, 0.5, 1.0, 1.5]
    assert [net.rank for net in procs["net"].values()] == [0, 1, 2, 3]


def test_functions_and_classes_of_either_side(procs):
    scale = 10
    procs["f"] = lambda x: x * scale
    assert ok(procs, "f(rank)") == ["0", "10", "20", "30"]
    procs["f"] = lambda x: x + 1
    assert ok(procs, "f(rank)") == ["1", "2", "3", "4"]
    ok(procs, "def twice(x):\n    return 2 * x * (rank + 1)")
    assert [f(1) for f in procs["twice"].values()] == [2, 4, 6, 8]


def test_scatter_gives_each_rank_its_part(procs):
    procs.scatter("part", list(range(10)))
    assert procs["part"].values() == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    procs.scatter("part", np.arange(12).reshape(6, 2))
    assert ok(procs, "part.tolist()")[3] == "[[10, 11]]"
    procs.scatter("part", torch.arange(12).reshape(2, 6), dim=1)
    assert [each.tolist() for each in procs["part"].values()] == [
        [[0, 1], [6, 7]],
        [[2, 3], [8, 9]],
        [[4], [10]],
        [[5], [11]],
    ]
    procs.slice(gpus=slice(0, 2)).scatter("part", "abc")
    assert procs.slice(gpus=slice(0, 2))["part"].values() == ["ab", "c"]


def test_scatter_refuses_what_cannot_be_cut(procs):
    with pytest.raises(TypeError, match="a int cannot be cut into parts"):
        procs.scatter("part", 3)
    with pytest.raises(ValueError, match=r"cannot cut along dim=2: a ndarray here has 2 axes"):
        procs.scatter("part", np.zeros((4, 4)), dim=2)
    with pytest.raises(ValueError, match="one axis, dim=0"):
        procs.scatter("part", [1, 2], dim=1)


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["a b", "", "1x", "class", "a.b"])
def test_names_are_those_of_variables(procs, name):
    with pytest.raises(ValueError, match="cannot be the name of a variable"):
        procs[name]
    with pytest.raises(ValueError, match="cannot be the name of a variable"):
        procs[name] = 1


def test_a_number_is_no_name(procs):
    with pytest.raises(TypeError, match=r'as in mesh\["x"\], not 3; a part .* mesh.slice'):
        procs[3]
    with pytest.raises(TypeError, match="name of a variable"):
        list(procs)


def test_ranks_that_lack_it_are_named_in_one_error(procs):
    ok(procs, "if rank in (1, 2): only_here = rank")
    with pytest.raises(RankNameError) as caught:
        procs["only_here"]
    assert caught.value.ranks == (0, 3)
    assert str(caught.value).startswith("'only_here' is not defined on ranks 0,3.")
    ok(procs, "batches = 1")
    with pytest.raises(NameError, match=r"on any rank of four\. Did you mean 'batches'\? .*has:"):
        procs["batchs"]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.ranks, again.name) == (str(caught.value), (0, 3), "only_here")


def test_what_cannot_be_pickled_is_named_with_its_rank(procs):
    ok(procs, "import threading\nbox = {'a': 1}\nif rank == 2: box['lock'] = threading.Lock()")
    with pytest.raises(EncodeError, match=r"^rank 2: box\['lock'\] cannot be pickled: TypeError"):
        procs["box"]
    assert procs.slice(gpus=slice(0, 2))["box"].values() == [{"a": 1}, {"a": 1}]


def test_what_cannot_be_sent_is_set_nowhere(procs):
    procs["kept"] = 1
    with pytest.raises(EncodeError, match=r"^kept\[1\] cannot be pickled"):
        procs["kept"] = [1, threading.Lock()]
    with pytest.raises(EncodeError, match=r"kept\[0\] cannot be pickled"):
        procs.scatter("kept", [1, 2, 3, threading.Lock()])
    assert procs["kept"].values() == [1, 1, 1, 1]


def _refuse_on_rank(wanted):
    from monarch_nb import current_rank

    if current_rank().rank == wanted:
        raise OSError("no such file here")
    return wanted


class PickyOnArrival:
    def __init__(self, rank):
        self.rank = rank

    def __reduce__(self):
        return _refuse_on_rank, (self.rank,)


def test_what_cannot_be_unpickled_there_is_named_with_its_rank(procs):
    with pytest.raises(
        DecodeError, match="^rank 3: picky cannot be unpickled there: OSError: no such file"
    ):
        procs["picky"] = PickyOnArrival(3)


def test_user_code_that_raises_while_pickling_leaves_the_rank_alive(procs):
    ok(
        procs,
        "class Mean:\n    def __reduce__(self):\n        raise SystemExit('no')\nmean = Mean()",
    )
    with pytest.raises(MeshError, match=r"^ranks 0-3: .*SystemExit: no"):
        procs["mean"]
    assert ok(procs, "1") == ["1"] * 4


# --------------------------------------------------------------------------------------- waiting


def test_a_busy_rank_answers_when_its_cell_ends(procs, tmp_path):
    go = tmp_path / "go"
    busy = run_cell(
        procs,
        f"import os, time\nbusy = 1\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.005)\n"
        "busy = 2",
        filename="<cell>",
        first_line=1,
        tag=0,
    )
    found = []
    asker = threading.Thread(target=lambda: found.append(procs["busy"].values()))
    asker.start()
    assert not busy.wait(0.1)
    assert found == []
    go.touch()
    asker.join(20)
    assert found == [[2, 2, 2, 2]]


def test_an_interrupt_ends_the_wait_at_once(program):
    done = program(
        """
import os, signal, threading, time
from monarch_nb import this_host
from monarch_nb.control.cells import run_cell
mesh = this_host().spawn_procs(per_host={"gpus": 2})
mesh["x"] = 1
loop = "import time\\nwhile True: time.sleep(0.01)"
cell = run_cell(mesh, loop, filename="<c>", first_line=1, tag=0)
pressed = []
def press():
    pressed.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, press).start()
try:
    mesh["x"]
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - pressed[0] < 0.25)
cell.interrupt()
cell.wait(10)
print(mesh["x"].values())
"""
    )
    assert done.stdout == "interrupted True\n[1, 1]\n", done.stderr


@pytest.mark.fault
def test_a_lost_rank(spawn, failures):
    mesh = spawn(per_host={"gpus": 3}, name="three")
    mesh["x"] = 1
    run(mesh.slice(gpus=1), "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    eventually(lambda: 1 in inside.lost(mesh), what="the loss")
    with pytest.raises(SupervisionError, match="rank 1") as caught:
        mesh["x"]
    assert caught.value.ranks == (1,)
    assert mesh.slice(gpus=2)["x"].item() == 1
    with pytest.raises(SupervisionError):
        mesh["x"] = 2
    assert mesh.slice(gpus=2)["x"].item() == 1


@pytest.mark.fault
def test_a_rank_that_dies_while_asked(spawn, failures):
    mesh = spawn(per_host={"gpus": 2}, name="two")
    run_cell(
        mesh.slice(gpus=1),
        "import os, signal, time; time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)",
        filename="<cell>",
        first_line=1,
        tag=0,
    )
    with pytest.raises(SupervisionError, match="rank 1"):
        mesh["rank"]


# ------------------------------------------------------------------------------- kept results


@pytest.fixture
def four(spawn) -> ProcMesh:
    """Ranks that keep nothing yet."""
    return spawn(per_host={"gpus": 4}, name="four")


def kept_on(mesh: ProcMesh) -> list[int]:
    """How many results each rank keeps."""
    code = (
        "import gc; from monarch_nb.worker.cells.queue import CellQueue\n"
        "[len(each.results) for each in gc.get_objects() if isinstance(each, CellQueue)][0]"
    )
    return [int(text) for text in ok(mesh, code)]


def test_the_values_of_last_expressions_are_kept_until_fetched(four):
    ran = run(four.slice(gpus=slice(1, 4)), "[rank, 'value']", keep=True)
    assert kept_on(four) == [0, 1, 1, 1]
    assert ran.value(3) == [3, "value"]
    values = ran.values().get()
    assert (values.sizes, values.values()) == (
        {"gpus": 3},
        [[1, "value"], [2, "value"], [3, "value"]],
    )
    eventually(lambda: kept_on(four) == [0] * 4, what="the ranks keep them no longer")
    assert ran.values().get()[0] == ran.value(1) == [1, "value"]


def test_a_cell_without_last_expression_has_none(procs):
    assert run(procs, "x = 1", keep=True).values().get().values() == [None] * 4


def test_results_go_with_the_handle(four):
    ran = run(four, "rank", keep=True)
    assert kept_on(four) == [1] * 4
    del ran
    eventually(lambda: kept_on(four) == [0] * 4, what="the ranks keep them no longer")


def test_the_oldest_of_many_results_goes(procs):
    runs = [run(procs, str(number), keep=True) for number in range(34)]
    assert kept_on(procs) == [32] * 4
    with pytest.raises(MeshError, match="ranks 0-3: the result of that cell is not kept any more"):
        runs[0].values().get()
    assert runs[33].value(0) == 33


def test_a_result_that_cannot_be_moved(procs):
    ran = run(procs, "import threading; threading.Lock() if rank == 1 else rank", keep=True)
    with pytest.raises(EncodeError, match="^rank 1: result cannot be pickled"):
        ran.values().get()
    assert ran.value(2) == 2
    with pytest.raises(RuntimeError, match="without keeping"):
        run(procs, "1").values()
