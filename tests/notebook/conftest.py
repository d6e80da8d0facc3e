"""Kernels whose session has a fake runtime below it."""

import atexit
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.extension import unload_ipython_extension
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernel, kernelspec

__all__ = ["kernel", "kernelspec"]

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


@pytest.fixture(scope="module")
def spare() -> Iterator[KernelClient]:
    """A kernel for `fresh`, which has had a mesh: what the first one makes is no leak of a test."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 1", timeout_s=50)
        client.ok("%mesh down")
        yield client


@pytest.fixture
def fresh(spare: KernelClient) -> Iterator[KernelClient]:
    """A kernel with nothing but four new ranks, for a test that breaks them."""
    spare.ok("get_ipython().reset()")  # the next cell is In[1]
    spare.ok("%mesh up --gpus 4", timeout_s=50)
    yield spare
    spare.run("%mesh down --all")


@pytest.fixture
def own() -> Iterator[KernelClient]:
    """The same for a test that ends the kernel."""
    with KernelClient("monarch") as client:
        client.ok("%mesh up --gpus 4", timeout_s=50)
        yield client


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """A shell in this process."""
    made = InteractiveShell()
    made.history_manager.enabled = False
    yield made
    unload_ipython_extension(made)
    made.atexit_operations()
    atexit.unregister(made.atexit_operations)
