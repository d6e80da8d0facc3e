"""Failures that nobody expects, and programs in processes of their own."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Failures
from tests.source import ROOT

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def failures(request: pytest.FixtureRequest, failures: Failures) -> Iterator[Failures]:
    """Who does not ask for it expects nothing."""
    yield failures
    assert len(failures) == 1 or not failures.only_one, failures
    expected = "failures" in request.node.function.__code__.co_varnames
    assert expected or not failures, "\n".join(each.report() for each in failures)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """`program(source)` runs a script to its end and returns how it ended."""

    def run(source: str, *, within_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "program.py"
        path.write_text(source)
        return subprocess.run(
            [sys.executable, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    return run


@pytest.fixture(scope="session")
def other_python(tmp_path_factory) -> str:
    """The interpreter of another environment, which has what this one has."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = folder.glob("lib/python3*/site-packages")
    paths = [str(ROOT), *(each for each in sys.path if "site-packages" in each)]
    (packages / "all.pth").write_text("\n".join(paths))
    return str(folder / "bin/python")
