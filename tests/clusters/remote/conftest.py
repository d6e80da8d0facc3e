"""A kernel whose four ranks are on two machines, which it reaches by ssh."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clusters import sshd as ssh_servers
from tests.clusters.machines import Machine, Machines
from tests.clusters.sshd import SshServers
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec

__all__ = ["kernelspec"]


@pytest.fixture(scope="module")
def nodes(needs) -> Iterator[list[Machine]]:
    """Two machines, node1 and node2."""
    needs("root", "machines")
    if missing := [each for each in ssh_servers.COMMANDS if not shutil.which(each)]:
        pytest.skip(f"no {', '.join(missing)} on PATH")
    with Machines() as machines:
        yield machines(2, home=True)


@pytest.fixture(scope="module")
def up(nodes, tmp_path_factory) -> Iterator[str]:
    """What is typed for two ranks on each of them."""
    folder = tmp_path_factory.mktemp("remote")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("MONARCH_NB_HOME", str(folder / "home"))
        servers = stack.enter_context(SshServers(nodes[0].hosts_file.parent, nodes))
        # a shared connection would stay for a while
        words = f"-F {servers.config} -o ControlMaster=no -o ControlPath=none"
        on = f"ssh:{nodes[0].name},{nodes[1].name} --python {sys.executable}"
        yield f"%mesh up --on {on} --gpus 2 --device cpu -- {words}"


@pytest.fixture(scope="module")
def kernel(up: str) -> Iterator[KernelClient]:
    """It has a mesh, of ranks 0-1 on node1 and 2-3 on node2; the tests of a module share it."""
    with KernelClient("monarch") as client:
        client.ok(up, timeout_s=90)
        yield client
