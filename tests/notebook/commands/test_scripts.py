"""`%mesh run` over real ranks: scripts as people have them, unchanged."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from monarch_nb.notebook import options
from tests.kernel.client import Cell, KernelClient
from tests.notebook.commands.scripts import digits

DIGITS = digits.__file__
PROMPT_S = 0.3
FREE_S = 5.0
"""Long below PyTorch's 30 minutes, after which ranks would stop waiting for one that has failed."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Iterator[KernelClient]:
    """A Monarch kernel in a folder of its own, with four ranks; shared by the tests of the module.

    They come when the zygote is ready and loads what scripts that train need: once for all.
    """
    folder = tmp_path_factory.mktemp("scripts")
    with KernelClient("monarch") as client:
        client.ok(f"import os; os.chdir({str(folder)!r})")
        client.ok("import monarch_nb; monarch_nb.this_host().initialized.get()")
        client.ok("%mesh up --gpus 4", timeout_s=50)
        client.folder = folder
        yield client


@pytest.fixture
def fresh(kernel: KernelClient) -> Iterator[KernelClient]:
    """For scripts after which Python or PyTorch keeps something for the life of a process."""
    kernel.ok("%mesh up --gpus 4 --name fresh")
    yield kernel
    kernel.ok("%mesh down fresh")


@pytest.fixture
def script(kernel):
    """Writes a script, or another file, into the folder of the ranks."""

    def write(text: str, name: str = "job.py") -> Path:
        path = kernel.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> torch.Tensor:
    """The weights when one process trains on the same batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = digits.Digits()
    for start in range(0, 256, 64):
        batch = slice(start, start + 64)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def lines(cell: Cell) -> dict[int, list[str]]:
    """What each rank has printed, however the lines were folded."""
    found: dict[int, list[str]] = {}
    for label, line in re.findall(r"^\[([0-9,-]+)\] ?(.*)$", cell.text(), re.MULTILINE):
        for rank in options.ranks(label):
            found.setdefault(rank, []).append(line)
    return found


def trains_as_one_process(kernel, alone, folder, typed):
    out = folder / "weights of it"
    cell = kernel.ok(f"%mesh run {DIGITS} {typed} --out '{out}'", timeout_s=60)
    assert cell.text() == "[0] saved by 0 of 4\n"
    assert torch.allclose(torch.load(out), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("typed", ["--how ddp", "--how fsdp", "--workers 2"])
def test_training_on_a_mesh_gives_the_weights_of_one_process(kernel, alone, tmp_path, typed):
    trains_as_one_process(kernel, alone, tmp_path, typed)


def test_fully_shard_twice(fresh, alone, tmp_path):
    trains_as_one_process(fresh, alone, tmp_path, "--how fully_shard")
    trains_as_one_process(fresh, alone, tmp_path, "--how fully_shard")


def test_workers_that_are_spawned_import_the_script(fresh, alone, tmp_path):
    typed = f"%mesh run 0-1 {DIGITS} --workers 1 --context spawn --out {tmp_path}/weights"
    assert fresh.ok(typed, timeout_s=60).text() == "[0] saved by 0 of 2\n"
    assert torch.allclose(torch.load(tmp_path / "weights"), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("selection, said", [
    ("gpus=1:3", "[1] saved by 0 of 2\n"), ("0,3", "[0] saved by 0 of 2\n"),
    ("1", "[1] saved by 0 of 1\n"),
])  # fmt: skip
def test_a_selection_is_the_world_of_the_script(kernel, alone, tmp_path, selection, said):
    out = tmp_path / "weights"
    cell = kernel.ok(f"%mesh run {selection} {DIGITS} --out {out}", timeout_s=60)
    assert cell.text() == said
    assert torch.allclose(torch.load(out), alone, atol=1e-5, rtol=0)


def test_the_script_sees_what_torchrun_would_show_it(kernel, script):
    path = script(
        "import os, sys, beside\n"
        "names = 'RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK MASTER_ADDR'\n"
        "print(*[os.environ[n] for n in names.split()], sys.argv, __name__, beside.WORD)\n"
        "print(sys.path[0], __file__, os.getcwd(), os.environ['MASTER_PORT'].isdigit())\n"
        "rank = 'mine'\n"
    )
    script("WORD = 'one'\n", "beside.py")
    kernel.ok("%%mesh\nimport os\nbefore = dict(os.environ)")
    cell = kernel.ok("%mesh run 2-3 job.py a 'b c' {x} $y --name z")
    argv = "['job.py', 'a', 'b c', '{x}', '$y', '--name', 'z']"
    where = f"{kernel.folder} {path} {kernel.folder} True"
    assert lines(cell) == {
        2: [f"0 0 2 2 0 0 127.0.0.1 {argv} __main__ one", where],
        3: [f"1 1 2 2 0 1 127.0.0.1 {argv} __main__ one", where],
    }
    script("WORD = 'another'\n", "beside.py")
    assert "another" in kernel.ok("%mesh run job.py").text()
    cell = kernel.ok(
        "%%mesh\nimport sys\nrank, 'beside' in sys.modules, before == dict(os.environ)"
    )
    assert cell.displays[0]["text/plain"].splitlines()[3] == "[3] (3, False, True)"


def test_modules(kernel, script):
    script("", "pkg/__init__.py")
    script("import sys\nfrom . import part\nprint(__package__, sys.argv[1:])\n", "pkg/train.py")
    script("", "pkg/part.py")
    assert lines(kernel.ok("%mesh run 1-2 -m pkg.train -m x")) == {
        rank: ["pkg ['-m', 'x']"] for rank in (1, 2)
    }
    cell = kernel.run("%mesh run -m pkg.trian")
    assert cell.error == "ranks 0-3: there is no module pkg.trian; did you mean pkg.train?"
    assert "without __main__.py" in kernel.run("%mesh run -m pkg").error


@pytest.mark.parametrize("typed, said", [
    ("jop.py", "there is no jop.py in {folder}; did you mean job.py?"),
    ("nowhere/job.py", "there is no folder {folder}/nowhere, hence no nowhere/job.py"),
    ("pkg", "pkg is a folder; name a script in it, or a module with -m"),
    ("notes.txt", "notes.txt is no Python: invalid syntax (notes.txt, line 1)"),
    ("~nobody-here/job.py", "there is no home folder for ~nobody-here/job.py"),
])  # fmt: skip
def test_no_script_is_one_line(kernel, script, typed, said):
    script("pass\n")
    script("", "pkg/__init__.py")
    script("these are words\n", "notes.txt")
    cell = kernel.run(f"%mesh run {typed}")
    assert cell.error == f"ranks 0-3: {said.format(folder=kernel.folder)}"


@pytest.mark.parametrize("code, said", [
    ("exit()", ""), ("sys.exit(0)", ""), ("sys.exit(3)", "sys.exit(3)"),
    ("sys.exit('no data')", "sys.exit('no data')"),
])  # fmt: skip
def test_the_exit_code_of_a_script(kernel, script, code, said):
    script(f"import sys, atexit\natexit.register(print, 'bye')\nprint('at work')\n{code}\n")
    cell = kernel.run("%mesh run job.py")
    assert lines(cell) == {key: ["at work", "bye"] for key in range(4)}
    assert cell.error == (f"ranks 0-3: job.py called {said}" if said else "")
    assert kernel.ok("%%mesh\nimport sys; sys.stdin.closed").shown == "[0-3] False\n"


WAITS = "dist.all_reduce(torch.ones(1))"


@pytest.mark.parametrize("where", ["before the group", "in a collective", "in a model"])
def test_a_rank_that_fails_ends_the_script_on_all(kernel, script, where):
    join = "dist.init_process_group('gloo')\n"
    model = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
    fail = "if int(os.environ['RANK']) == 2:\n    raise ValueError('bad shard')\n"
    before = {"before the group": fail + join, "in a collective": join + fail}
    code = before.get(where, join + model + fail)
    script(f"import os, torch, torch.distributed as dist\n{code}{WAITS}\n")
    cell = kernel.run("%mesh run job.py", timeout_s=FREE_S)
    assert "rank 2: ValueError: bad shard" in cell.error
    assert "    raise ValueError('bad shard')" in cell.error
    assert "monarch_nb" not in cell.error
    assert "runpy" not in cell.error
    if where == "before the group":
        assert "ranks 0-1,3: RuntimeError: rank 2 ended before init_process_group" in cell.error
    script(
        "import torch.distributed as d\nd.init_process_group('gloo'); d.barrier(); print('ok')\n"
    )
    assert lines(kernel.ok("%mesh run job.py")) == {key: ["ok"] for key in range(4)}


def test_who_has_failed_first_is_named_also_to_the_last_that_comes(kernel, script):
    script(
        "import os, time, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
        "if rank == 2:\n    raise ValueError('bad shard')\n"
        "time.sleep(rank == 1)\ndist.init_process_group('gloo')\n"
    )
    said = kernel.run("%mesh run job.py", timeout_s=FREE_S).error
    assert "ranks 0-1,3: RuntimeError: rank 2 ended before init_process_group" in said


def test_ranks_that_do_not_wait_for_one_that_fails_are_interrupted(kernel, script):
    script("import os, time\nif os.environ['RANK'] == '2': raise ValueError\ntime.sleep(60)\n")
    cell = kernel.run("%mesh run job.py", timeout_s=FREE_S)
    assert "ranks 0-1,3 were still running after rank 2: ValueError." in cell.text("stderr")
    assert "ranks 0-1,3 were interrupted at" in cell.error


@pytest.mark.alone
def test_stop_ends_a_script(kernel, script):
    script(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nprint('started', flush=True)\n"
        "while True:\n    dist.all_reduce(torch.ones(1))\n"
    )
    cell = kernel.start("%mesh run job.py")
    kernel.until(lambda: "started" in cell.text())
    assert kernel.stop_s(cell) < PROMPT_S
    assert "KeyboardInterrupt" in cell.error
    assert kernel.ok("%%mesh\n'free'", timeout_s=FREE_S).shown == "[0-3] 'free'\n"


def test_what_ends_after_the_stop_leaves_no_connections(kernel, script):
    script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nopen('in-' + os.environ['RANK'], 'w')\n"
        "is_late = os.environ['RANK'] == '3'\n"
        "try:\n    time.sleep(60) if is_late else dist.all_reduce(torch.ones(1))\n"
        "except KeyboardInterrupt:\n    time.sleep(0.3 if is_late else 1)\n"
        "    if is_late: dist.all_reduce(torch.ones(1))\n    raise\n"
    )
    cell = kernel.start("%mesh run job.py")
    kernel.until(lambda: len(list(kernel.folder.glob("in-*"))) == 4)
    kernel.stop_s(cell)
    assert "KeyboardInterrupt" in cell.error
    assert kernel.ok("%%mesh\n'free'", timeout_s=FREE_S).shown == "[0-3] 'free'\n"


def test_groups_of_the_cells_are_not_harmed(kernel, script):
    kernel.ok(
        "%%mesh\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "half = dist.new_group([0, 1])"
    )
    script(
        "import torch.distributed as d\nassert not d.is_initialized()\n"
        "d.init_process_group(init_method='env://')\nd.new_group([1])\nprint(d.get_world_size())\n"
    )
    assert lines(kernel.ok("%mesh run 1-3 job.py")) == {key: ["3"] for key in (1, 2, 3)}
    cell = kernel.ok(
        "%%mesh\nx = torch.ones(1); dist.all_reduce(x)\n"
        "if rank < 2: dist.all_reduce(x, group=half)\nx.item(), dist.get_rank() == rank"
    )
    assert cell.displays[0]["text/plain"] == "[0-1] (8.0, True)\n[2-3] (4.0, True)"
    kernel.ok("%%mesh\ndist.destroy_process_group()\ndel half")


def test_a_working_folder_that_is_gone_costs_no_group(kernel, script, tmp_path):
    path = script("print('never')\n")
    kernel.ok(
        "%%mesh\nimport os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        f"was, gone = os.getcwd(), f'{tmp_path}/gone{{rank}}'\n"
        "os.mkdir(gone); os.chdir(gone); os.rmdir(gone)"
    )
    said = kernel.run(f"%mesh run {path}").error
    after = "os.chdir(was)\nthere = dist.is_initialized()\ndist.destroy_process_group()\nthere"
    assert kernel.ok(f"%%mesh\n{after}").shown == "[0-3] True\n"
    assert said.startswith("ranks 0-3: the working folder of this rank is gone; go to another")


def test_an_output_widget_in_a_script(kernel, script):
    script("import ipywidgets\nout = ipywidgets.Output()\nwith out: print(1)\nprint(out.outputs)\n")
    assert "'text': '1\\n'" in kernel.ok("%mesh run job.py").text()


def test_a_fork_that_a_script_does_not_end_ends_like_the_script(kernel, script):
    script(
        "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert lines(kernel.ok("%mesh run job.py")) == {rank: ["3"] for rank in range(4)}


def test_what_a_script_leaves_behind_is_put_away(kernel, script):
    script(
        "import logging, os, signal, threading, time\n"
        "logging.basicConfig(format='LOG %(message)s'); logging.warning('hi')\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); os.environ['LEFT'] = 'x'\n"
        "def late():\n    time.sleep(0.2); print('late')\n"
        "threading.Thread(target=late).start(); os.chdir('/')\n"
    )
    for _ in range(2):
        cell = kernel.ok("%mesh run 0 job.py")
        assert cell.text("stderr") == "[0] LOG hi\n"
        assert lines(cell) == {0: ["late"]}
    cell = kernel.ok("%%mesh 0\nimport os, signal; print(os.getcwd(), 'LEFT' in os.environ)")
    assert lines(cell) == {0: [f"{kernel.folder} False"]}
    cell = kernel.start("%%mesh 0\nimport time; print('started', flush=True); time.sleep(30)")
    kernel.until(lambda: "started" in cell.text())
    kernel.interrupt()
    assert "rank 0 was interrupted at" in kernel.finish(cell).error


def test_a_store_of_the_scripts_own_listens_on_the_loopback_only(kernel, script):
    script(
        "import os, torch.distributed as d\nfrom tests.support import listening_ports\n"
        "rank = int(os.environ['RANK'])\n"
        "where = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "store = d.TCPStore(*where, 4, rank == 0)\n"
        "store.set(str(rank), 'here'); store.wait([str(n) for n in range(4)])\n"
        "d.init_process_group('gloo', store=store, rank=rank, world_size=4); d.barrier()\n"
        "d.barrier()\n"
        "if rank == 0: print(where[1], listening_ports(os.getpid()))\n"
    )
    cell = kernel.ok("%mesh run job.py")
    port = cell.text().split()[1]
    assert f"'127.0.0.1 port {port}'" in cell.text()
    assert cell.text().count("127.0.0.1 port") == cell.text().count(" port ")


def test_a_handle(kernel, script):
    script("import time\nprint('on', flush=True)\ntime.sleep(60)\n")
    kernel.ok("%mesh run -a -o job --name mesh0 job.py")
    kernel.ok("import time\nwhile not job.elapsed_s > 0.3: time.sleep(0.01)\njob.cancel()")
    assert kernel.ok("job.wait(5), job.error.ranks").displays[0]["text/plain"].startswith("(True")
    assert "TimeoutError" in kernel.run("%mesh run --timeout 0.5 job.py").error
