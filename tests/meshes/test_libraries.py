"""Ranks find loaded what the program will use of slow libraries, and wait for nothing else."""

import subprocess
import sys
from pathlib import Path

from tests.source import ROOT

HEAD = """
import importlib, os, sys
from pathlib import Path
from monarch_nb import Actor, endpoint, shutdown_context, this_host

class Plain(Actor):
    @endpoint
    def has(self, library): return library in sys.modules
    @endpoint
    def host_has(self, library):
        return library in Path(f"/proc/{os.getppid()}/maps").read_text()
    @endpoint
    def run(self, library, function): return function(importlib.import_module(library))

def spawn(cls=Plain):
    return this_host().spawn_procs(per_host={"gpus": 2}).spawn("actors", cls)

def show(values): print(*values.values())
"""
TAIL = "\nshutdown_context().get()\n"


def run(folder: Path, program: str) -> list[str]:
    """What a program of its own prints, by line."""
    path = folder / "program.py"
    path.write_text(HEAD + program + TAIL)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={"PATH": "", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_without_torch_never_waits_for_it(tmp_path):
    program = """
actors = spawn()
for library in ("torch", "numpy"):
    show(actors.has.call(library).get())
    show(actors.host_has.call(library).get())
"""
    assert run(tmp_path, program) == ["False False"] * 4


def test_ranks_of_a_program_that_has_torch_share_it(tmp_path):
    assert run(tmp_path, "import torch\nshow(spawn().has.call('torch').get())") == ["True True"]


def test_a_program_that_loads_torch_later_has_it_in_later_ranks(tmp_path):
    program = """
show(spawn().has.call("torch").get())
importlib.import_module("torch")
show(spawn().has.call("torch").get())
"""
    assert run(tmp_path, program) == ["False False", "True True"]


def test_ranks_share_what_the_code_of_the_program_imports_later(tmp_path):
    program = """
class Trains(Plain):
    @endpoint
    def train(self):
        import torch
        return torch.ones(2).sum().item()

trainers = spawn(Trains)
show(trainers.host_has.call("torch").get())
show(trainers.train.call().get())
print("torch" in sys.modules)
"""
    assert run(tmp_path, program) == ["True True", "2.0 2.0", "False"]


def test_modules_beside_the_program_are_its_code(tmp_path):
    (tmp_path / "trainer.py").write_text("def step():\n    import torch\n")
    program = "import trainer\nshow(spawn().has.call('torch').get())"
    assert run(tmp_path, program) == ["True True"]


def test_a_rank_that_imports_torch_itself_is_a_rank_like_others(tmp_path):
    program = """
actors = spawn()
def reduced(dist):
    import sys
    library = sys.modules[dist.__name__.partition(".")[0]]
    found = library.ones(2)
    dist.all_reduce(found)
    return found.tolist()
def drawn(library): return library.rand(1).item()
def threads(library): return library.get_num_threads()

show(actors.has.call("torch").get())
print(len(set(actors.run.call("torch", drawn).get().values())))
show(actors.run.call("torch.distributed", reduced).get())
expected = max(1, len(os.sched_getaffinity(0)) // 2)
print(set(actors.run.call("torch", threads).get().values()) == {expected})
"""
    assert run(tmp_path, program) == ["False False", "2", "[2.0, 2.0] [2.0, 2.0]", "True"]


def test_later_ranks_share_what_a_rank_has_imported_itself(tmp_path):
    program = """
import time
def nothing(library): pass
show(spawn().run.call("torch", nothing).get())
limit = time.monotonic() + 20
while not all(spawn().has.call("torch").get().values()) and time.monotonic() < limit: pass
show(spawn().has.call("torch").get())
"""
    assert run(tmp_path, program) == ["None None", "True True"]


def test_ranks_that_will_run_scripts_share_torch(tmp_path):
    program = "from monarch_nb.spmd import SPMDActor\nshow(spawn().has.call('torch').get())"
    assert run(tmp_path, program) == ["True True"]
