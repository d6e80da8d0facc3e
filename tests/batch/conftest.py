"""Runs of notebooks with keys and a current folder of their own; none is left after a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_nb.control.batch import run_record
from tests.batch.terminal import typed
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec"]


@pytest.fixture(autouse=True)
def folder(kernelspec: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for run in run_record.all_runs():
        if run.is_alive():
            typed("stop", run.name)
