"""How programs get Monarch's modules, and what those say of what they lack."""

import pytest

from tests.compat.running import run, start

# --------------------------------------------------------------------------- where it is found

WHERE = """
import os, subprocess, sys
import monarch.actor
print(sys.argv[1:], __name__, sys.path[0] == os.path.dirname(os.path.abspath(__file__)))
child = "import monarch.actor; print(monarch.actor.Actor.__module__)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True))
"""


@pytest.mark.parametrize("compat", ["import", "variable", "module"])
def test_a_program_and_its_children_import_monarch(tmp_path, compat):
    done = run(tmp_path, WHERE, "--steps", "3", compat=compat)
    first, second = done.stdout.splitlines()
    assert first == "['--steps', '3'] __main__ True", done.stderr
    assert "stdout='monarch_nb.actors.definition\\n'" in second
    assert "stderr=''" in second


def test_a_module_runs_as_a_program_too(tmp_path):
    (tmp_path / "users_module.py").write_text("import monarch, sys; print(__name__, sys.argv[1:])")
    done = start(tmp_path, "-m", "monarch_nb.compat", "-m", "users_module", "7")
    assert done.stdout == "__main__ ['7']\n", done.stderr


def test_a_program_that_fails_fails(tmp_path):
    done = run(tmp_path, "import sys; sys.exit(7)", compat="module")
    assert done.returncode == 7
    done = start(tmp_path, "-m", "monarch_nb.compat", "no_such.py")
    assert done.returncode == 1
    assert done.stderr.startswith("there is no program 'no_such.py'\nusage: ")


def test_nothing_is_served_without_being_asked(tmp_path):
    done = run(tmp_path, "import monarch_nb, monarch", compat="", MONARCH_NB_COMPAT="0")
    assert "ModuleNotFoundError: No module named 'monarch'" in done.stderr


def test_a_real_monarch_is_hidden_only_when_asked(tmp_path):
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch/__init__.py").write_text("real = True")
    (tmp_path / "monarch/extra.py").write_text("")
    done = run(tmp_path, "import monarch_nb, monarch; print(monarch.real)", compat="")
    assert done.stdout == "True\n", done.stderr
    done = run(
        tmp_path, "import monarch; print(monarch.heal_mesh.__module__)\nimport monarch.extra"
    )
    assert done.stdout == "monarch_nb.control.monarch_aliases\n", done.stderr
    assert "No module named 'monarch.extra'" in done.stderr
    done = run(tmp_path, "import monarch\nimport monarch_nb.compat", compat="")
    assert "import monarch_nb.compat before it" in done.stderr


MISSING = """
import importlib.util
import monarch, monarch.actor

assert not hasattr(monarch.actor, "no_such_name")
assert getattr(monarch, "no_such_name", None) is None
assert importlib.util.find_spec("monarch.no_such_module") is None
assert importlib.util.find_spec("monarch.actor").name == "monarch.actor"
try:
    monarch.no_such_name
except AttributeError as error:
    print(error)
try:
    from monarch import no_such_name
except ImportError as error:
    print(error)
try:
    import monarch.no_such_module
except ModuleNotFoundError as error:
    print(error)
"""


def test_what_is_missing_is_missing_as_anywhere(tmp_path):
    done = run(tmp_path, MISSING)
    assert done.returncode == 0, done.stderr
    attribute, name, module = done.stdout.splitlines()
    assert attribute.startswith("module 'monarch' of monarch_nb 0.")
    assert attribute.endswith("has no attribute 'no_such_name'")
    assert name.startswith("cannot import name 'no_such_name' from 'monarch' (")
    assert "monarch_nb/compat" in name
    assert module == "No module named 'monarch.no_such_module'"


# ------------------------------------------------------------------------------------- in the ranks

MODULE = """
from monarch.actor import Actor, endpoint
import monarch.actor

class Imported(Actor):
    @endpoint
    def where(self):
        return Imported.__module__, monarch.actor.config.prefix_python_logs_with_actor
"""

USES_MODULE = """
from monarch_nb import this_host
before = this_host().spawn_procs()
before.initialized.get()
import monarch_nb.compat
from users_module import Imported
print(this_host().spawn_procs().spawn("imported", Imported).where.call_one().get())
"""


@pytest.mark.slow
def test_ranks_import_modules_that_import_monarch(tmp_path):
    """Also when the import comes after the host has been started."""
    (tmp_path / "users_module.py").write_text(MODULE)
    done = run(tmp_path, USES_MODULE, compat="")
    assert done.stdout == "('users_module', True)\n", done.stderr


CELL = """
import monarch
import monarch.actor
from monarch_nb import this_host
mesh = this_host().spawn_procs({"gpus": 2})


class Named(monarch.actor.Actor):
    @monarch.actor.endpoint
    def where(self):
        return monarch.actor.current_rank().rank, monarch.Extent(["a"], [2]).nelements


print(mesh.spawn("named", Named).where.call().get().values())
print(mesh.execute(lambda module: module.current_size(), monarch.actor).values())
"""


@pytest.mark.slow
def test_code_that_names_its_modules_is_sent_to_ranks(tmp_path):
    done = run(tmp_path, CELL)
    assert done.stdout == "[(0, 2), (1, 2)]\n[{'gpus': 2}, {'gpus': 2}]\n", done.stderr


LATE = """
from monarch_nb import this_host
before = this_host().spawn_procs()
before.initialized.get()
import monarch_nb.compat
import monarch
print(before.execute(lambda: monarch.Extent(["a"], [3]).nelements).values())
"""


@pytest.mark.slow
def test_ranks_that_were_there_before_learn_of_them(tmp_path):
    done = run(tmp_path, LATE, compat="")
    assert done.stdout == "[3]\n", done.stderr
