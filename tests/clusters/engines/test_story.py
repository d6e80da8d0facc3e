"""The same story on each engine, as cells of a notebook: hosts come, a model is trained across them
as one process would train it, a rank fails and is looked into, one dies and is healed, hosts go."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from monarch_nb.host.rundir import sweep_all
from tests.clusters.engines.ray_cluster import RayCluster, TooBusyError
from tests.clusters.machines import Machine, Machines
from tests.clusters.slurm import Cluster
from tests.clusters.sshd import SshServers
from tests.kernel.client import KernelClient
from tests.kernel.conftest import kernelspec
from tests.notebook.prompts import Prompt
from tests.source import ROOT
from tests.support import describe_process, eventually

__all__ = ["kernelspec"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

STEPS = 20
MODEL = f"""
import torch

def data(part=0, parts=1):
    inputs = torch.linspace(-3, 3, 64, dtype=torch.float64).reshape(-1, 1)[part::parts]
    return inputs, torch.sin(inputs)

def network():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).double()

def train(model, inputs, wanted):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range({STEPS}):
        loss = (model(inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""
SEND = "mesh0['data'], mesh0['network'], mesh0['train'] = data, network, train"
TRAIN = """%%mesh
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
known = model.module if "model" in globals() else network()
model = DistributedDataParallel(known)
losses = train(model, *data(rank, size))
"""
COMPARE = """
alone = network()
expected = train(alone, *data()) + train(alone, *data())
means = [sum(parts) / len(parts) for parts in zip(*mesh0['losses'].values())]
print(max(abs(a - b) for a, b in zip(means, expected[{first}:{first} + len(means)])) < 1e-9)
"""
FAILS = """%%mesh
def check(part):
    wrong = part * 7
    assert rank != 3, 'a bad part'
check(rank)
"""
DIES = "%%mesh\nimport os, signal\nif rank == 3: os.kill(os.getpid(), signal.SIGKILL)"


class Asked(NamedTuple):
    """What is typed for two hosts of an engine that runs; whether nothing is left of them."""

    on: str
    nothing_is_left: Callable[[], bool] = lambda: True


@contextmanager
def on_processes(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Asked]:
    yield Asked("processes --hosts 2")


@contextmanager
def on_ssh(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Asked]:
    with Machines() as machines:
        both = machines(2, home=True)
        with SshServers(machines.folder, both) as servers:
            # a shared connection would stay for a while
            words = f"-F {servers.config} -o ControlMaster=no -o ControlPath=none"
            on = f"ssh:node1,node2 --python {sys.executable} -- {words}"
            yield Asked(on, lambda: not any(map(ours, both)))


@contextmanager
def on_slurm(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Asked]:
    with Cluster(2) as cluster:
        patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        yield Asked(
            "slurm --hosts 2 --time 10",
            lambda: not cluster.run("squeue", "-h") and not any(map(ours, cluster.nodes)),
        )


def ours(machine: Machine) -> list[int]:
    """Processes of ours on a machine; its daemons go on."""
    return [pid for pid in machine.processes() if "monarch_nb" in describe_process(pid)]


@contextmanager
def on_k8s(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Asked]:
    from tests.clusters.engines import planes
    from tests.clusters.engines.kubelet import Kubelet

    with planes.plane() as plane:
        core = planes.core_of(plane)
        patch.setenv("KUBECONFIG", str(plane.config()))
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # of the image
        kubelet = Kubelet(core, "ml", folder)
        try:
            on = "k8s --hosts 2 --namespace ml --image registry/ml:1"
            yield Asked(on, lambda: kubelet.is_idle() and not planes.left(core))
        finally:
            kubelet.close()


@contextmanager
def on_ray(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Asked]:
    with RayCluster() as cluster:
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield Asked("ray --hosts 2", lambda: not cluster.hosts())


NEEDS: dict[Callable[..., AbstractContextManager[Asked]], str] = {
    on_processes: "",
    on_ssh: "ssh sshd unshare",
    on_slurm: "slurmctld slurmd munged unshare",
    on_k8s: "kubernetes",
    on_ray: "ray",
}
NIGHTLY = (on_slurm, on_k8s)
ENGINES = [
    pytest.param(
        each,
        id=each.__name__[3:],
        marks=[pytest.mark.alone] * (each is on_ray) + [pytest.mark.nightly] * (each in NIGHTLY),
    )
    for each in NEEDS
]


@pytest.fixture(scope="module", params=ENGINES)
def asked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    """The engine runs before leaks of its test are looked for."""
    for name in NEEDS[request.param].split():
        if not shutil.which(name) and not find_spec(name):
            pytest.skip(f"no {name} here")
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("MONARCH_NB_HOME", str(folder / "home"))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        try:
            made = stack.enter_context(request.param(folder, patch))
        except TooBusyError as error:
            pytest.skip(str(error))
        yield made


def trained(kernel: KernelClient, first: int) -> bool:
    """Train on all hosts; whether the losses are those of one process from this step on."""
    kernel.ok(SEND)
    kernel.ok(TRAIN, timeout_s=60)
    return kernel.ok(COMPARE.format(first=first)).text() == "True\n"


def test_up_train_fail_debug_heal_down(asked: Asked) -> None:
    with KernelClient("monarch") as kernel:
        options, dashes, words = asked.on.partition(" -- ")
        up = f"%mesh up --on {options} --gpus 2 --device cpu{dashes}{words}"
        said = kernel.ok(up, timeout_s=90).shown
        assert re.search(r"2/2 hosts -> ranks up in [\d.]+ s\n", said)
        assert "mesh0 is up: 4 ranks (hosts=2 gpus=2)" in said
        kernel.ok(MODEL)
        assert trained(kernel, 0)

        failed = kernel.run(FAILS)
        assert failed.status == "error"
        assert "rank 3: AssertionError: a bad part" in failed.error
        with Prompt(kernel, "%mesh pm 3") as prompt:
            prompt.type("p wrong, part", at="(rank 3) ")
            prompt.sees("(21, 3)\n")
            prompt.type("q")

        died = kernel.run(DIES)
        assert "rank 3: the process was killed by signal 9 (SIGKILL)" in died.error
        healed = kernel.ok("%mesh heal", timeout_s=60).text()
        assert "mesh0 is whole again: 4 ranks (hosts=2 gpus=2); rank 3 started again" in healed
        assert trained(kernel, STEPS), "from the weights of the others"

        down = kernel.ok("%mesh down", timeout_s=60).text()
        assert down == "mesh0 is down, the hosts of mesh0 are given back\n"
        eventually(asked.nothing_is_left, 20)
    sweep_all()
