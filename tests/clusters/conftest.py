"""Machines, a Slurm cluster, ssh: skipped, with what is missing, where they cannot be had."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from monarch_nb import HostMesh, attach_to_workers, shutdown_context
from tests.clusters import slurm as slurm_cluster
from tests.clusters import sshd as ssh_servers
from tests.clusters.machines import Machine, Machines
from tests.clusters.offer import PORT
from tests.clusters.slurm import Cluster
from tests.clusters.sshd import SshServers
from tests.source import ROOT
from tests.support import eventually, listening_ports


@pytest.fixture(scope="module")
def can_have_machines(needs) -> None:
    needs("root", "machines")


@pytest.fixture
def machines(can_have_machines) -> Iterator[Machines]:
    """`[one, two] = machines(2)`; see `Machines.__call__` for what they can be."""
    with Machines() as made:
        yield made


@pytest.fixture(scope="module")
def slurm(request, can_have_machines) -> Iterator[Cluster]:
    """The cluster of the module, with as many nodes as its `NODES`; `sbatch` ... find it."""
    _need(slurm_cluster.COMMANDS, "slurm-wlm munge")
    with Cluster(request.module.NODES) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        yield cluster


@pytest.fixture
def sshd(machines, tmp_path) -> Iterator[Callable[[Sequence[Machine]], SshServers]]:
    """`sshd([one, two])`: a server in each, until the test ends; `.config` is for `ssh -F`."""
    _need(ssh_servers.COMMANDS, "openssh-server openssh-client")
    with ExitStack() as stack:
        yield lambda some: stack.enter_context(SshServers(machines.folder, some))


@pytest.fixture
def attach(request, tmp_path, monkeypatch) -> Iterator[Callable[..., HostMesh]]:
    """`attach([one, two])`: the hosts that workers offer there, once they listen.

    Workers have the keys of the client, from a folder that machines share.
    """
    monkeypatch.setenv("MONARCH_NB_HOME", str(tmp_path / "keys"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if "machines" in request.fixturenames:
        request.getfixturevalue("machines")  # they end after the client, which is theirs
    yield _attach
    shutdown_context().get(20)


def _attach(
    machines: Sequence[Machine], addresses: Sequence[str] = (), spares: int = 0
) -> HostMesh:
    for each in machines:
        eventually(lambda each=each: _offers(each), 30, f"a worker listens on {each.name}")
    written = addresses or [f"tcp://{each.address}:{PORT}" for each in machines]
    return attach_to_workers(workers=written, spares=spares)


def _offers(machine: Machine) -> bool:
    places = (place for pid in machine.processes() for place in listening_ports(pid))
    return any(place.endswith(f" port {PORT}") for place in places)


def _need(commands: Sequence[str], packages: str) -> None:
    if missing := [each for each in commands if not shutil.which(each)]:
        pytest.skip(f"no {', '.join(missing)} on PATH (Debian: apt-get install {packages})")
