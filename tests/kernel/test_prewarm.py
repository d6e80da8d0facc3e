"""The first mesh of a kernel comes up at once, and nobody notices how."""

import os

import pytest

from tests.kernel.client import KernelClient
from tests.support import eventually


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setenv("TO_BE_REMOVED", "x")
    monkeypatch.delenv("MONARCH_NB_PRELOAD")
    with KernelClient("monarch") as client:
        yield client


def test_agent_and_zygote_are_there_before_the_first_mesh_and_serve_it(kernel):
    before = kernel.hosts()
    assert "No mesh is up" in kernel.ok("%mesh").shown
    assert kernel.ok("import sys; print('torch' in sys.modules)").text() == "False\n"
    kernel.ok("%mesh up --gpus 2")
    assert kernel.ok("%%mesh\nprint(rank)").text() == "[0] 0\n[1] 1\n"
    assert before <= kernel.hosts()


def test_ranks_have_the_environment_of_their_day(kernel):
    kernel.ok("import os; os.environ['FROM_A_CELL'] = 'yes'; del os.environ['TO_BE_REMOVED']")
    kernel.ok("%mesh up --gpus 1")
    shown = "import os; print(os.environ['FROM_A_CELL'], 'TO_BE_REMOVED' in os.environ)"
    assert kernel.ok(f"%%mesh\n{shown}").text() == "yes False\n"


def test_settings_of_the_first_cell_count(kernel):
    before = kernel.hosts()
    kernel.ok("import os; os.environ['MONARCH_NB_GRACE_S'] = '3.5'")
    kernel.ok("%mesh up --gpus 1")
    asked = "from monarch_nb.control.client import client; print(client().config.grace_s)"
    assert kernel.ok(asked).text() == "3.5\n"
    assert before.isdisjoint(kernel.hosts())


def test_a_setting_names_what_ranks_find_loaded(monkeypatch):
    monkeypatch.setenv("MONARCH_NB_PRELOAD", "colorsys, wave")
    with KernelClient("monarch") as kernel:
        kernel.ok("%mesh up --gpus 1")
        found = "[name for name in ('colorsys', 'wave', 'torch') if name in sys.modules]"
        assert kernel.ok(f"%%mesh\nimport sys; {found}").shown == "['colorsys', 'wave']\n"


def test_a_name_that_is_wrong_is_told_in_one_line(monkeypatch):
    monkeypatch.setenv("MONARCH_NB_PRELOAD", "torhc")
    with KernelClient("monarch", ahead=1) as kernel:  # the zygote ends at once
        said = kernel.run("%mesh up --gpus 1").error
        assert "no module 'torhc', which MONARCH_NB_PRELOAD names: install or correct it" in said
        assert "Traceback" not in said


def test_what_must_precede_the_first_use_still_does(kernel):
    kernel.ok("from monarch_nb import enable_transport; enable_transport('ipc')")


def test_a_kernel_that_ends_before_any_use_leaves_nothing(kernel):
    pid = kernel.manager.provisioner.pid
    hosts = kernel.hosts()
    kernel.manager.shutdown_kernel(now=False)
    eventually(lambda: not any(os.path.exists(f"/proc/{each}") for each in [pid, *hosts]))


def test_what_shows_the_first_error_is_there_before_it(kernel):
    loaded = "{'stack_data', 'pygments.lexers.python'} <= set(sys.modules)"
    eventually(lambda: kernel.ok(f"import sys; {loaded}").shown == "True\n")


def test_a_collection_of_garbage_passes_over_what_the_kernel_began_with(kernel):
    assert kernel.ok("import gc; len(gc.get_objects()) < gc.get_freeze_count()").shown == "True\n"
