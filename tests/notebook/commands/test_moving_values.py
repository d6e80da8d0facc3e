"""`%mesh put` and `get`, `mesh["x"]` in a notebook, and the values of cells that go on."""

import pytest

from tests.kernel.client import KernelClient
from tests.support import eventually

FIRST_CELLS = ["%mesh up replicas=2 gpus=2", "import numpy as np, torch"]


def said(kernel: KernelClient, code: str) -> str:
    """The one line that a failing cell shows."""
    cell = kernel.run(code)
    assert cell.status == "error", cell.shown
    return cell.error


# ------------------------------------------------------------------------------------ put and get


def test_put_and_get(kernel):
    kernel.ok("x, y = 20, [1, 2]")
    assert kernel.ok("%mesh put x y").shown == ""
    assert kernel.ok("%%mesh\nx += rank; x, y").displays[0]["text/plain"].splitlines() == [
        f"[{rank}] ({20 + rank}, [1, 2])" for rank in range(4)
    ]
    shown = kernel.ok("%mesh get x").displays[0]["text/plain"]
    assert shown.startswith("ValueMesh replicas=2 gpus=2: 20 to 23, mean 21.5\n"), shown
    assert shown.endswith("replicas=1  22  23")
    assert kernel.ok("v = %mesh get x\nprint(v.values(), v.item(replicas=1, gpus=0))").text() == (
        "[20, 21, 22, 23] 22\n"
    )
    assert kernel.ok("print(mesh0['x'].values()); mesh0['x'] = 5").text() == "[20, 21, 22, 23]\n"
    assert kernel.ok("print(mesh0['x'].values())").text() == "[5, 5, 5, 5]\n"


@pytest.mark.parametrize(
    "selection, values",
    [
        ("replicas=1", "[0, 0, 1, 1]"),
        ("0,3", "[1, 0, 0, 1]"),
        ("0-2", "[1, 1, 1, 0]"),
        ("[0,1,3]", "[1, 1, 0, 1]"),
        ("-t 2", "[0, 0, 1, 0]"),
        ("@mesh0 1", "[0, 1, 0, 0]"),
        ("all --name mesh0", "[1, 1, 1, 1]"),
    ],
)
def test_ranks_are_selected_as_for_cells(kernel, selection, values):
    kernel.ok("mesh0['z'] = 0; z = 1")
    kernel.ok(f"%mesh put z {selection}")
    assert kernel.ok("print(mesh0['z'].values())").text() == f"{values}\n"
    assert kernel.ok("print(mesh0['z'].values())").text() == f"{values}\n"
    if (count := values.count("1")) > 1:
        assert kernel.ok(f"v = %mesh get z {selection}\nprint(v.values())").text() == (
            f"{[1] * count}\n"
        )


@pytest.mark.parametrize("selection", ["2", "-t 2", "@mesh0 2", "replicas=1 gpus=0", "-2"])
def test_of_one_rank_it_is_the_value(kernel, selection):
    kernel.ok("%%mesh\nmine = {'rank': rank}")
    assert kernel.ok(f"%mesh get mine {selection}").shown == "{'rank': 2}\n"
    assert kernel.ok("v = %mesh get mine gpus=0:1 replicas=1\nv.values()").shown == (
        "[{'rank': 2}]\n"
    )


def test_stack(kernel):
    kernel.ok(
        "%%mesh\nimport torch, numpy as np\n"
        "t = torch.full((3,), float(rank)); a = np.arange(2) + rank"
    )
    code = "v = %mesh get {} --stack\nprint(type(v).__name__, tuple(v.shape), v.tolist())"
    assert kernel.ok(code.format("t")).text().startswith("Tensor (2, 2, 3) [[[0.0, 0.0, 0.0], [1.0")
    assert kernel.ok(code.format("a")).text() == (
        "ndarray (2, 2, 2) [[[0, 1], [1, 2]], [[2, 3], [3, 4]]]\n"
    )
    assert kernel.ok(code.format("rank")).text() == "ndarray (2, 2) [[0, 1], [2, 3]]\n"
    assert kernel.ok("v = %mesh get rank 0,3 --stack\nprint(v)").text() == "[0 3]\n"
    kernel.ok("%%mesh\nt = torch.zeros(2 + rank // 3); o = object() if rank == 2 else 1")
    assert said(kernel, "%mesh get t --stack") == (
        "t cannot be stacked, its shapes differ: (2,) on ranks 0-2; (3,) on rank 3"
    )
    assert said(kernel, "%mesh get o --stack") == (
        "o cannot be stacked: on rank 2 it is no number, array or tensor but a object"
    )


def test_errors_are_one_line(kernel):
    assert said(kernel, "%mesh put nowhere") == "there is no variable 'nowhere' here"
    kernel.ok("learning_rate = 1")
    assert said(kernel, "%mesh put learning_rat").endswith("did you mean learning_rate?")
    assert said(kernel, "%mesh put 0,2").startswith("%mesh put: needs the name of a variable first")
    assert said(kernel, "%mesh get a b").startswith("%mesh get: takes one variable, not a and b.")
    assert said(kernel, "%mesh get rank gpus=7").startswith("gpus=7 is outside the mesh")
    error = said(kernel, "%mesh get nowhere")
    assert error.startswith("'nowhere' is not defined on any rank of mesh0."), error
    assert "\n" not in error
    kernel.ok("import threading; bad = {'a': [threading.Lock()]}")
    error = said(kernel, "%mesh put bad")
    assert error.startswith("bad['a'][0] cannot be pickled: TypeError"), error
    assert "\n" not in error
    kernel.ok("%%mesh 2\nsome = 1")
    error = said(kernel, "mesh0['some']")
    assert error.splitlines()[-1].startswith(
        "RankNameError: 'some' is not defined on ranks 0-1,3. Rank 0 has: "
    ), error
    assert "proc_mesh.py" not in error


# --------------------------------------------------------------------------- code of either side


def test_functions_of_the_controller_run_on_ranks_and_show_their_source(kernel):
    kernel.ok("def half(x):\n    y = x - 2  # the reason\n    return 1 / y")
    kernel.ok("%mesh put half")
    cell = kernel.run("%%mesh\nhalf(rank)")
    assert cell.status == "error"
    assert "return 1 / y" in cell.error, cell.error
    shown = kernel.ok("%%mesh\nimport inspect\nprint(inspect.getsource(half))").shown
    assert "[0-3]     y = x - 2  # the reason" in shown
    kernel.ok("def half(x):\n    return x * 100")
    kernel.ok("%mesh put half")
    shown = kernel.ok("%%mesh\nprint(inspect.getsource(half)); half(1)").shown
    assert "return x * 100" in shown
    assert "[0-3] 100" in shown


def test_pdb_on_ranks_lists_the_source_of_the_controller(kernel):
    kernel.ok("def listed(x):\n    marked = x  # in the list\n    return marked")
    kernel.ok("%mesh put listed")
    shown = kernel.ok(
        "%%mesh 0\n"
        "import io, pdb, sys\n"
        "said = io.StringIO()\n"
        "debugger = pdb.Pdb(stdin=io.StringIO('s\\nll\\nc\\n'), stdout=said, readrc=False)\n"
        "_ = debugger.runcall(listed, 1)\n"
        "print(said.getvalue())"
    ).shown
    assert "marked = x  # in the list" in shown


def test_functions_of_ranks_run_in_the_controller_and_show_their_source(kernel):
    kernel.ok("%%mesh\nclass Net:\n    size = 3\ndef f(x):\n    return x.missing  # of a rank\n")
    kernel.ok("v = %mesh get f\nf = v[1]\nn = %mesh get Net\nNet = n[0]")
    assert kernel.ok("print(Net().size)").text() == "3\n"
    cell = kernel.run("f(Net())")
    assert "return x.missing  # of a rank" in cell.error, cell.error
    assert "# of a rank" in kernel.ok("import inspect; print(inspect.getsource(f))").text()


# --------------------------------------------------------------------------- values of the cells


def test_the_values_of_a_cell_that_goes_on(kernel):
    kernel.ok("%%mesh --noblock -o epoch\nprint('said'); {'loss': rank / 2}")
    assert kernel.ok("print([one['loss'] for one in epoch.result(20).values()])").text() == (
        "[0.0, 0.5, 1.0, 1.5]\n"
    )
    assert kernel.ok("print(epoch[3], epoch.result().sizes)").text() == (
        "{'loss': 1.5} {'replicas': 2, 'gpus': 2}\n"
    )
    kernel.ok("%%mesh 0,1,3 -o some\nrank * 10")
    assert kernel.ok("print(some.result().values(), some[3])").text() == "[0, 10, 30] 30\n"
    assert "has no rank 2; it has" in said(kernel, "some[2]")
    kernel.ok("%%mesh --noblock -o later\nrank + 0.5")
    assert kernel.ok("print((await later).values())").text() == "[0.5, 1.5, 2.5, 3.5]\n"


def test_of_a_cell_that_failed_on_some_ranks_the_others_have_values(kernel):
    kernel.run("%%mesh --noblock -o mixed\n1 // (rank - 1)")
    assert "ZeroDivisionError" in said(kernel, "mixed.result(20)")
    assert kernel.ok("print(mixed[0], mixed[3])").text() == "-1 0\n"
    assert "ZeroDivisionError" in said(kernel, "mixed[1]")


def test_ranks_keep_a_result_as_long_as_somebody_has_the_cell(kernel):
    count = (
        "%%mesh 0\nimport gc; from monarch_nb.worker.cells.queue import CellQueue\n"
        "[len(each.results) for each in gc.get_objects() if isinstance(each, CellQueue)][0]"
    )

    def kept() -> int:
        return int(kernel.ok(count).displays[0]["text/plain"].split()[-1])

    before = kept()
    kernel.ok("%%mesh -o held\nrank")
    assert kept() == before + 1
    kernel.ok("del held")
    eventually(lambda: kept() == before, what="the rank has dropped it")


def test_stop_ends_a_wait_for_a_busy_rank_at_once(kernel):
    kernel.ok("%%mesh 1 --noblock -o busy\nimport time\nwhile True: time.sleep(0.01)")
    cell = kernel.start("print('started', flush=True); mesh0['rank']")
    kernel.until(lambda: "started" in cell.text())
    assert kernel.stop_s(cell) < 0.3
    assert "KeyboardInterrupt" in cell.error
    kernel.ok("busy.cancel(); busy.wait(10)")
    assert kernel.ok("print(mesh0['rank'].values())").text() == "[0, 1, 2, 3]\n"
