"""What lies beside the notebook: modules of the user's, and files that wait to be imported."""

import importlib.metadata
import sys

import pytest

from tests.kernel.client import KernelClient
from tests.notebook.view.browser.test_messages import HELLO, v1

TRACE = "open({log!r}, 'a').write(__name__ + '\\n')\n"
HERE = "at = 'beside the notebook'\ndef where(): return at\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The notebook's."""
    made = tmp_path / "of_the_notebook"
    made.mkdir()
    monkeypatch.chdir(made)  # Jupyter starts kernels there
    return made


@pytest.mark.slow
def test_nothing_in_the_folder_runs_before_a_cell_does(folder, tmp_path):
    """Whatever a file there is called: Python's, the kernel's, a library's."""
    log = tmp_path / "has_run"
    names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    for name in {*names, "monarch_kernel", "monarch_nb", "sitecustomize", "usercustomize"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(TRACE.format(log=str(log)))
    try:
        with KernelClient("monarch") as kernel:
            opened(kernel)
    finally:
        assert not log.exists(), log.read_text()


def opened(kernel: KernelClient) -> None:
    """Somebody has opened the notebook, looks at its page and types."""
    comm = {"comm_id": "c", "target_name": "monarch_nb.mesh", "data": {}}
    shell = kernel.client.shell_channel
    for kind, content in (("comm_open", comm), ("comm_msg", {"comm_id": "c", "data": v1(HELLO)})):
        shell.send(kernel.client.session.msg(kind, content))
    for asked in (kernel.client.complete("import nu"), kernel.client.inspect("print")):
        kernel.until(lambda asked=asked: kernel.has_come("status", asked, "idle"))
    request = kernel.control("debug_request", {"type": "request", "seq": 1, "command": "debugInfo"})
    kernel.until(lambda: kernel.has_come("debug_reply", request))
    kernel.until(lambda: [m for m in kernel.others if m["msg_type"] == "comm_msg"])


@pytest.mark.slow
def test_modules_beside_the_notebook_are_there_for_its_cells(folder):
    (folder / "mine.py").write_text(HERE)
    (folder / "random.py").write_text(HERE)
    (folder / "sortedcontainers.py").write_text(HERE)
    show = "import mine, sortedcontainers, random; print(mine.at, sortedcontainers.at)\n"
    show += "print(hasattr(random, 'at'))"
    with KernelClient("monarch") as kernel:
        says = "beside the notebook beside the notebook\nFalse\n"
        assert kernel.ok(show).text() == says
        kernel.ok("%mesh up --gpus 2")
        assert says.splitlines()[0] in kernel.ok(f"%%mesh 1\n{show}").text()
        child = "subprocess.check_output([sys.executable, '-c', 'import mine; print(mine.at)'])"
        assert "beside" in kernel.ok(f"import subprocess, sys; print({child})").text()
        pool = "concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('spawn'))"
        code = f"import concurrent.futures, multiprocessing\nwith {pool} as pool:\n"
        code += "    print(pool.submit(mine.where).result())"
        assert "beside" in kernel.ok(code, timeout_s=60).text()


@pytest.mark.slow
def test_who_does_not_want_the_folder_does_not_have_it(folder, monkeypatch):
    (folder / "mine.py").write_text(HERE)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with KernelClient("monarch") as kernel:
        assert "No module named 'mine'" in kernel.run("import mine").error
        assert kernel.ok("import sys; print('' in sys.path)").text() == "False\n"
