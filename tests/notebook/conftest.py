"""Kernels whose session has a fake runtime below it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec"]

FAKE = """
%load_ext monarch_nb.notebook.extension
from tests.notebook.fake_client import install
fake = install(get_ipython())
"""


@pytest.fixture(scope="module")
def fake_kernel() -> Iterator[KernelClient]:
    """A Monarch kernel with a fake mesh of four ranks; shared by the tests of a module."""
    with KernelClient("monarch") as client:
        client.ok(FAKE)
        client.ok("%mesh up --gpus 4")
        yield client
