"""Kernels as Jupyter starts them, from the kernelspec of the checkout."""

import os
import shutil
from collections.abc import Iterator

import pytest
from jupyter_core.utils import ensure_event_loop

from tests.kernel.client import KernelClient
from tests.kernel.front_end import FrontEnd
from tests.source import ROOT


@pytest.fixture(scope="session", autouse=True)
def kernelspec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Jupyter find the kernel `monarch` and the kernel its code, without an installation."""
    ensure_event_loop()  # jupyter_client keeps one for the thread; it is no leak of the first test
    share = tmp_path_factory.mktemp("jupyter")
    shutil.copytree(ROOT / "kernel/spec", share / "kernels/monarch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(share), prepend=os.pathsep)
        for folder in (ROOT / "kernel", ROOT):
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        yield


@pytest.fixture(scope="module")
def kernel(request: pytest.FixtureRequest) -> Iterator[KernelClient]:
    """A Monarch kernel that has run the `FIRST_CELLS` of the module, whose tests share it."""
    with KernelClient("monarch") as client:
        for cell in getattr(request.module, "FIRST_CELLS", ()):
            client.ok(cell, timeout_s=60)
        yield client


@pytest.fixture
def page(kernel: KernelClient) -> Iterator[FrontEnd]:
    """A front end whose debugger is on, with no breakpoints; of the module's own kernel."""
    page = FrontEnd(kernel)
    page.on()
    yield page
    page.off()
