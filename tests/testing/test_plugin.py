"""The fixtures, in a project of a user's: what docs/testing.md has, and tests that shall fail."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from tests.source import ROOT

FILES = re.findall(
    r"^```py\n# (\w+\.py)\n(.*?)^```$",
    (ROOT / "docs/testing.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
FAILING = textwrap.dedent("""
    import os
    import subprocess

    import pytest

    from monarch_nb import Actor, endpoint
    from monarch_nb.testing import faults

    left = []

    class Worker(Actor):
        @endpoint
        def work(self): ...

    @pytest.mark.parametrize("mesh", [{"dp": 2}], indirect=True)
    def test_of_ranks(no_leaks, mesh):
        workers = mesh.spawn("workers", Worker)
        faults.inject(mesh.slice(dp=1), at="call.end", action=faults.kill())
        workers.work.broadcast()
        while "lost" not in repr(mesh):
            os.sched_yield()
        assert mesh.sizes == {"dp": 3}

    def test_that_leaves_something(no_leaks):
        left.append(os.open("/dev/null", os.O_RDONLY))
        left.append(subprocess.Popen(["sleep", "600"]))

    def test_that_leaves_nothing_else(mesh, no_leaks):
        assert len(mesh) == 4
""")


def run(folder, *arguments) -> str:
    """What pytest prints there."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.fault
def test_a_project_of_a_user(tmp_path):
    assert [name for name, _ in FILES] == ["conftest.py", "test_training.py"]
    for name, text in [*FILES, ("test_failing.py", FAILING)]:
        (tmp_path / name).write_text(text)
    said = run(tmp_path, "test_training.py", "test_failing.py")
    assert re.search(r"1 failed, 4 passed, 1 error", said), said
    assert re.search(r"(?m)^-+ ranks of mesh\d+ -+\nrank +coordinates +pid +state", said), said
    assert re.search(r"(?m)^0 +dp=0 +\d+ +idle$", said), said
    assert re.search(r"(?m)^1 +dp=1 +\d+ +exited +was killed by signal 9", said), said
    assert re.search(r"failure that nobody waited for -+\nfailure on mesh 'workers'", said), said
    assert re.search(r"left behind after 5 s:\n.*process \d+ \(S\) sleep 600\n", said), said
    assert re.search(r"file descriptor \d+: /dev/null\n", said), said


def test_the_package_is_a_plugin_that_loads_pytest_for_pytest_alone():
    program = "import monarch_nb.testing, sys; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=20)
