"""`pip install monarch_nb` into environments that people have: other Pythons, the oldest and the
newest PyTorch. What was there keeps its version, nothing is compiled, and a notebook runs."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

from tests.test_packaging import run, wheel

__all__ = ["wheel"]

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1800)]

CELLS = """\
%mesh up --gpus 2
---
%%mesh
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
one.item()
---
from monarch_nb import Actor, endpoint
class Sum(Actor):
    @endpoint
    def add(self, n):
        return n + 1
print(mesh0.spawn("sums", Sum).add.call(1).get().values())
---
%mesh down"""
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false", "PIP_ONLY_BINARY": ":all:"}


class Environment(NamedTuple):
    """A Python, and what somebody has installed for it before."""

    python: str
    before: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.python}-{self.before[0]}"


ENVIRONMENTS = [
    Environment("3.11", ("torch==2.6.0", "numpy==1.26.4", "jupyterlab==4.4.0", "pandas==2.2.3")),
    Environment("3.12", ("torch==2.13.0", "jupyterlab>=4.4,<5", "notebook>=7.4")),
    Environment("3.13", ("torch", "jupyterlab>=4.4,<5", "transformers")),
    Environment("3.14", ("torch", "jupyterlab>=4.4,<5")),
]


def interpreter(version: str) -> str | None:
    """A Python of this version that has venv, of the machine or of pyenv."""
    program = f"python{version}"
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{program}"))
    for found in [*map(str, of_pyenv), shutil.which(program)]:
        wanted = [found or "", "-c", "import ensurepip, venv"]
        if found and not subprocess.run(wanted, capture_output=True, check=False).returncode:
            return found
    return None


def installed(python: Path) -> dict[str, str]:
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    return {each["name"]: each["version"] for each in listed}


@pytest.fixture
def home(tmp_path) -> Iterator[Path]:
    """A folder for some gigabytes, which do not stay."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_it_is_added_to_what_somebody_has(environment, wheel, home):
    found = interpreter(environment.python)
    if found is None:
        pytest.skip(f"needs Python {environment.python} with venv")
    run(found, "-m", "venv", home / "venv")
    python = home / "venv/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, *environment.before, **NO_COMPILER)
    before = installed(python)

    run(*pip, wheel, **NO_COMPILER)
    after = installed(python)
    assert {name: after[name] for name in before} == before, "what was there has its version"
    assert "No broken requirements" in run(python, "-m", "pip", "check")

    listed = [python, "-m", "jupyter", "labextension", "list"]
    extensions = subprocess.run(listed, capture_output=True, text=True, check=True).stderr
    assert re.search(r"monarch-nb v[\d.]+ \S*enabled\S* \S*OK", extensions), extensions

    cells = list(map(nbformat.v4.new_code_cell, CELLS.split("\n---\n")))
    kernel = {"kernelspec": {"name": "monarch", "display_name": "Monarch", "language": "python"}}
    notebook = home / "cells.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebook)
    run(
        *(python, "-m", "jupyter", "execute", "--inplace", notebook),
        cwd=home,
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    )
    said = json.dumps([cell.outputs for cell in nbformat.read(notebook, 4).cells])
    assert "mesh0 is up: 2 ranks" in said
    assert "[0-1] 2.0" in said
    assert "[2, 2]" in said
