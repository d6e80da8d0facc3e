"""Programs written for Monarch run unchanged after `import monarch_nb.compat`."""

import os
import subprocess
import sys

import pytest

from tests.source import ROOT


def run(tmp_path, source, *, compat="import", **env):
    """Run a program to its end; `compat`: how Monarch's names get there."""
    program = tmp_path / "program.py"
    first = "import monarch_nb.compat\n" if compat == "import" else ""
    program.write_text(first + source)
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}", **env}
    if compat == "variable":
        variables["MONARCH_NB_COMPAT"] = "1"
    return subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


# ----------------------------------------------------------------------------------- whole programs

TUTORIAL = '''
"""Counters, ping-pong, supervision: in the manner of the tutorials."""
import asyncio

import monarch
import monarch.actor
from monarch.actor import (
    Actor, Channel, Future, HostMesh, MeshFailure, Port, ProcMesh, concurrent_endpoint, context,
    current_rank, current_size, endpoint, this_host, this_proc,
)
from monarch._src.actor.proc_mesh import register_proc_mesh_spawn_callback
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError

register_proc_mesh_spawn_callback(lambda mesh: print("spawned", dict(mesh.sizes)))


class Counter(Actor):
    def __init__(self, initial_value: int):
        self.value = initial_value

    @endpoint
    def increment(self) -> None:
        self.value += 1

    @endpoint
    def get_value(self) -> int:
        return self.value

    @endpoint
    def fail(self) -> None:
        raise Exception("I don't want to")


counter: Counter = this_proc().spawn("counter", Counter, initial_value=0)
fut: Future[int] = counter.get_value.call_one()
print("local", fut.get())

procs: ProcMesh = this_host().spawn_procs(per_host={"gpus": 4})
counters = procs.spawn("counters", Counter, 0)
counters.increment.broadcast()
counters.slice(gpus=slice(0, 2)).increment.broadcast()
print("values", [value for _, value in counters.get_value.call().get()])
print("extent", procs.extent)


class Player(Actor):
    def __init__(self, name):
        self.name = name

    @endpoint
    async def ping(self, other, left: int) -> list:
        mine = f"{self.name}{context().actor_instance.rank['gpus']}"
        return [mine] if left == 0 else [mine, *await other.pong.call_one(left - 1)]

    @endpoint
    async def pong(self, left: int) -> list:
        return [f"{self.name} pongs {left}"]


left, right = procs.spawn("left", Player, "left"), procs.spawn("right", Player, "right")
pairs = left.slice(gpus=1).ping.call_one(right.slice(gpus=2), 3).get()
print("rally", pairs)


class Supervisor(Actor):
    def __init__(self):
        self.seen = []
        self.child = this_proc().spawn("child", Counter, 0)

    @endpoint
    async def break_child(self):
        self.child.fail.broadcast()
        while not self.seen:
            await asyncio.sleep(0.01)
        return self.seen

    async def __supervise__(self, failure: MeshFailure):
        self.seen.append(str(failure).partition(",")[0])
        return True


supervisor = procs.slice(gpus=0).spawn("supervisor", Supervisor)
print("handled", supervisor.break_child.call_one().get())

try:
    counters.fail.call().get()
except monarch.actor.ActorError as error:
    print("error", type(error.exception).__name__, error.exception)

faults = []
monarch.actor.unhandled_fault_hook = faults.append
counters.slice(gpus=3).fail.broadcast()
while not faults:
    asyncio.run(asyncio.sleep(0.01))
print("hook", faults[0].mesh_name, faults[0].crashed_ranks)
try:
    counters.get_value.call().get()
except SupervisionError as error:
    print("supervision", isinstance(error, RuntimeError))
asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=3))
procs.stop().get()
monarch.actor.shutdown_context().get()
print("end")
'''


@pytest.mark.slow
@pytest.mark.parametrize("compat", ["import", "variable"])
def test_a_tutorial_runs_unchanged(tmp_path, compat):
    done = run(tmp_path, TUTORIAL.replace("import monarch\n", "import monarch_nb, monarch\n")
               if compat == "variable" else TUTORIAL, compat=compat)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "local 0",
        "spawned {'gpus': 4}",
        "values [2, 2, 1, 1]",
        "extent {gpus: 4}",
        "rally ['left1', 'right pongs 2']",
        "handled [\"MeshFailure(mesh_name='child'\"]",
        "error Exception I don't want to",
        "hook counters [3]",
        "supervision True",
        "end",
    ]


# the articles of the seeds: the older spelling, awaited at the top level
ARTICLE = """
import asyncio, os
from monarch.actor import Actor, current_rank, endpoint, proc_mesh

WORLD_SIZE = 2


class DDPActor(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    async def demo_basic(self):
        print(f"{self.rank=} Running basic DDP example on port {os.environ['MASTER_PORT']}")

    @endpoint
    async def get_system_info(self):
        return {"rank": self.rank, "process_id": os.getpid()}


async def main():
    local_proc_mesh = await proc_mesh(
        gpus=WORLD_SIZE, env={"MASTER_ADDR": "localhost", "MASTER_PORT": "12455"}
    )
    ddp_actor = await local_proc_mesh.spawn("ddp_actor", DDPActor)
    await ddp_actor.demo_basic.call()
    system_info = await ddp_actor.get_system_info.call()
    for point, rank_info in system_info:
        assert point.rank == rank_info["rank"]
    print(f"Found {len(system_info)} ranks in the mesh")
    print(len({value["process_id"] for point, value in system_info}))


asyncio.run(main())
"""


@pytest.mark.slow
def test_the_article_of_the_seeds(tmp_path):
    done = run(tmp_path, ARTICLE)
    assert done.returncode == 0, done.stderr
    said = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
    assert sorted(said) == [
        "2",
        "Found 2 ranks in the mesh",
        "self.rank=0 Running basic DDP example on port 12455",
        "self.rank=1 Running basic DDP example on port 12455",
    ]


HEALING = """
import os
import monarch
from monarch.actor import this_host
from monarch.exceptions import DeviceMeshError


def resilient_execution(mesh, data_loader):
    results = []
    for batch in data_loader:
        try:
            results.append(perform(mesh, batch))
        except DeviceMeshError as e:
            print("failed", e.ranks)
            mesh = monarch.heal_mesh(mesh)
            results.append(perform(mesh, batch))
    return results


def perform(mesh, batch):
    return [value for _, value in mesh.execute(lambda x: x * 2, batch)]


mesh = this_host().spawn_procs({"gpus": 2})
monarch.actor.unhandled_fault_hook = lambda failure: None


def batches():
    yield 1
    try:
        mesh.slice(gpus=1).execute(os._exit, 1)
    except DeviceMeshError:
        pass
    yield 2
    yield 3


print(resilient_execution(mesh, batches()))
"""


@pytest.mark.slow
@pytest.mark.fault
def test_the_loop_that_heals(tmp_path):
    done = run(tmp_path, HEALING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["failed (1,)", "[[2, 2], [4, 4], [6, 6]]"]


MODULE = """
from monarch.actor import Actor, endpoint
import monarch.config

class Imported(Actor):
    @endpoint
    def where(self):
        return Imported.__module__, monarch.config.prefix_python_logs_with_actor
"""

USES_MODULE = """
from monarch_nb import this_host
before = this_host().spawn_procs()
before.initialized.get()
import monarch_nb.compat
from users_module import Imported
print(this_host().spawn_procs().spawn("imported", Imported).where.call_one().get())
"""


@pytest.mark.slow
def test_ranks_import_modules_that_import_monarch(tmp_path):
    """Also when the import comes after the host has been started."""
    (tmp_path / "users_module.py").write_text(MODULE)
    done = run(tmp_path, USES_MODULE, compat="")
    assert done.stdout == "('users_module', True)\n", done.stderr


# ------------------------------------------------------------------------------------------- names

NAMES = """
import importlib
import monarch_nb
import monarch, monarch.actor, monarch.exceptions, monarch.config

assert monarch.actor.Actor is monarch_nb.Actor
assert monarch.exceptions.DeviceMeshError is monarch_nb.DeviceMeshError
assert monarch.actor.context is monarch_nb.context
assert monarch.Extent is monarch_nb.Extent
assert "endpoint" in dir(monarch.actor) and "endpoint" in monarch.actor.__all__
from monarch.actor import *
assert Accumulator is monarch_nb.Accumulator
from monarch._src.actor.telemetry import TracingForwarder, get_meter
from monarch._rust_bindings.monarch_hyperactor.shape import Point, Shape
from monarch._rust_bindings.monarch_hyperactor.proc import ProcId, Uid
assert monarch.actor.Uid is Uid is monarch_nb.Uid
from monarch._rust_bindings.monarch_hyperactor.mailbox import UndeliverableMessageEnvelope
from monarch.tools.config import Workspace
from monarch.tools.config.environment import CondaEnvironment, Environment
import monarch.tools.config.workspace
assert monarch.tools.config.workspace.Workspace is Workspace is monarch_nb.Workspace
assert isinstance(monarch.tools.config.workspace.ACTIVE_CONDA_ENV, CondaEnvironment)
assert Point is monarch_nb.Point
import monarch.gradient_generator, monarch.common.pipe, monarch.common.stream
import monarch_nb.tensor
assert monarch.Stream is monarch.common.stream.Stream is monarch_nb.tensor.Stream
assert monarch.grad_generator is monarch.gradient_generator.grad_generator
assert monarch.remote_generator is monarch.common.pipe.remote_generator
from monarch import OpaqueRef, coalescing, create_pipe, get_active_stream, grad_function
import monarch.rdma
from monarch.rdma import RDMAAction, RDMABuffer, get_rdma_backend, is_rdma_available
assert monarch.rdma.RDMABuffer is RDMABuffer is monarch_nb.RDMABuffer
assert get_rdma_backend() == "tcp" and not is_rdma_available()
from monarch.spmd import SPMDActor, setup_torch_elastic_env, setup_torch_elastic_env_async
assert SPMDActor is monarch_nb.spmd.SPMDActor
from monarch.common.device_mesh import RemoteProcessGroup
assert RemoteProcessGroup is monarch.RemoteProcessGroup

monarch.config.prefix_python_logs_with_actor = False
import monarch_nb.config
assert monarch_nb.config.prefix_python_logs_with_actor is False
assert monarch.actor.config is monarch_nb.config

assert not hasattr(monarch.actor, "no_such_name")
for ask in (
    lambda: importlib.import_module("monarch.job.spmd"),
    lambda: importlib.import_module("monarch.no_such_module"),
    lambda: importlib.import_module("monarch.tools.commands"),
    lambda: monarch.job,
    lambda: monarch.Simulator,
    lambda: monarch.set_meta,
    lambda: monarch.actor.debug_controller,
):
    try:
        ask()
    except ImportError as error:
        print(error)
try:
    from monarch import world_mesh
except ImportError as error:
    print(error)
"""


def test_names_are_those_of_this_package_and_what_is_missing_says_so(tmp_path):
    done = run(tmp_path, NAMES)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert all("is not part of this release (monarch_nb 0." in line for line in lines)
    assert lines[0].startswith("monarch.job is not part of this release")
    assert lines[0].endswith("jobs come with a later one")
    assert lines[-1].startswith("monarch.world_mesh is not part of this release")


def test_nothing_is_served_without_being_asked(tmp_path):
    done = run(tmp_path, "import monarch_nb, monarch", compat="")
    assert "ModuleNotFoundError: No module named 'monarch'" in done.stderr


def test_a_real_monarch_is_hidden_only_by_the_import(tmp_path):
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch/__init__.py").write_text("real = True")
    done = run(tmp_path, "import monarch_nb, monarch; print(monarch.real)", compat="")
    assert done.stdout == "True\n", done.stderr
    done = run(tmp_path, "import monarch; print(monarch.heal_mesh.__module__)")
    assert done.stdout == "monarch_nb.control.monarch_aliases\n", done.stderr
    done = run(tmp_path, "import monarch\nimport monarch_nb.compat", compat="")
    assert "import monarch_nb.compat before it" in done.stderr
