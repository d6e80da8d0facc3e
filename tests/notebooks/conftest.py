"""Notebooks as they are in the repository, and as they are when they are run now."""

from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from tests.kernel.conftest import kernelspec
from tests.notebooks import reading

__all__ = ["kernelspec"]


@pytest.fixture(scope="module")
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The `NOTEBOOK` of the module, run now, without anybody to type."""
    path = request.module.NOTEBOOK
    return reading.execute(path, tmp_path_factory.mktemp(path.stem))


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """What the cell with this source shows in the repository."""
    return reading.shown_by(nbformat.read(request.module.NOTEBOOK, as_version=4))


@pytest.fixture(params=["recorded", "executed"])
def shown(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """The same in the repository, and when it is run now."""
    found = request.getfixturevalue(request.param)
    return found if request.param == "recorded" else reading.shown_by(found)
