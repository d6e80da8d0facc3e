"""Programs written for Monarch run unchanged after `import monarch_nb.compat`."""

import pytest

from tests.compat.running import run

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
@pytest.mark.parametrize("compat", ["import", "variable", "module"])
def test_a_tutorial_runs_unchanged(tmp_path, compat):
    done = run(tmp_path, TUTORIAL, compat=compat)
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


# what demonstrations do: a job, actors that wait, that stop by themselves, one that dies
JOB = """
import asyncio
import logging
import monarch.actor
from monarch._src.actor.actor_mesh import ActorMesh, Channel, Port, PortReceiver
from monarch._src.actor.telemetry import TracingForwarder
from monarch.actor import Actor, concurrent_endpoint, context, current_rank, endpoint
from monarch.job import ProcessJob, TelemetryConfig
from monarch.mesh_controller import spawn_tensor_engine

logger = logging.getLogger("demonstration")
logger.addHandler(TracingForwarder())
faults = []
monarch.actor.unhandled_fault_hook = faults.append


class Crash(BaseException):
    pass


class Worker(Actor):
    def __init__(self):
        self.release = asyncio.Event()
        self.home = int(context().actor_instance.rank["replica"])

    @endpoint
    async def work(self):
        return current_rank().rank, self.home

    @concurrent_endpoint
    async def hold(self, entered: "Port[str]"):
        entered.send(f"held {self.home}")
        await self.release.wait()
        return "released"

    @endpoint
    async def let_go(self):
        self.release.set()

    @endpoint
    async def leave(self):
        context().actor_instance.stop("done")

    @endpoint
    async def crash(self):
        raise Crash("memory")


async def main():
    job = ProcessJob({"hosts": 1}).enable_telemetry(TelemetryConfig(dashboard_port=0))
    try:
        host = job.state(cached_path=None).hosts
        procs = host.spawn_procs(name="worker", per_host={"replica": 3})
        workers = procs.spawn("worker", Worker)
        print("work", (await workers.work.call()).values())
        one = workers.slice(replica=2)
        print("alone", await one.work.call_one())
        port, received = Channel.open()
        held = asyncio.ensure_future(asyncio.wait_for(one.hold.call_one(port), 30))
        print(await received.recv())
        await one.let_go.call_one()
        print(await held)
        passing = procs.spawn("passing", Worker)
        passing.leave.broadcast()
        engine = spawn_tensor_engine(procs)
        engine.exit()
        try:
            await workers.slice(replica=0).crash.call_one()
        except Exception as error:
            print(type(error).__name__, "memory" in str(error))
        while not faults:
            await asyncio.sleep(0.01)
        print("fault", faults[0].mesh_name, faults[0].crashed_ranks)
        print("rest", await one.work.call_one())
        others = procs.slice(replica=slice(1, 3)).spawn("others", Worker)
        await others.stop("enough")
    finally:
        job.kill()
        print("killed", job.active)


asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.fault
def test_a_demonstration_on_a_job(tmp_path):
    done = run(tmp_path, JOB, compat="module", MONARCH_NB_HOME=str(tmp_path / "keys"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "work [(0, 0), (1, 1), (2, 2)]",
        "alone (0, 2)",
        "held 2",
        "released",
        "SupervisionError True",
        "fault worker [0]",
        "rest (0, 2)",
        "killed False",
    ]


# a pipeline whose heavy actors have stand-ins: how programs for GPUs are tried without any
SIMULATED = """
import asyncio
from monarch._src.actor.mock import patch_actor
from monarch.actor import Actor, endpoint, this_host


class Learner(Actor):
    def __init__(self, rate):
        raise RuntimeError("needs a GPU")

    @endpoint
    async def step(self):
        raise RuntimeError("needs a GPU")


class Simulated(Actor):
    def __init__(self, rate):
        self.rate = rate

    @endpoint
    async def step(self):
        return self.rate


async def train():
    learners = this_host().spawn_procs(per_host={"gpus": 2}).spawn("learner", Learner, 3)
    print((await learners.step.call()).values())


asyncio.run(patch_actor(Learner, Simulated)(train)())
with patch_actor(Learner, Simulated):
    asyncio.run(train())
"""


@pytest.mark.slow
def test_a_simulated_pipeline(tmp_path):
    done = run(tmp_path, SIMULATED, compat="module")
    assert done.stdout == "[3, 3]\n[3, 3]\n", done.stderr


# a program of tensors for GPUs, whose actors find simulated ones; and the same step on a simulator
SIMULATED_TENSORS = """
import inspect
import monarch
import monarch.job
import torch
from monarch import Simulator, fetch_shard
from monarch._src.actor.mock import patch_tensor_engine
from monarch.actor import Actor, context, endpoint


class Layer(Actor):
    def __init__(self, width):
        self.place = context().actor_instance.proc_mesh
        with self.place.activate():
            torch.set_default_device("cuda")
            self.net = torch.nn.Linear(width, width)
            self.optimizer = torch.optim.Adam(self.net.parameters(), fused=True)

    @endpoint
    async def train(self):
        with self.place.activate():
            loss = self.net(torch.randn(2, 3, device="cuda")).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return (await fetch_shard(loss.detach())).item()


def main():
    job = monarch.job.LocalJob(hosts=("trainers",)).state(cached_path=None)
    layers = job.trainers.spawn_procs(per_host={"gpus": 2}).spawn("layer", Layer, 3)
    print(layers.train.call().get().values())


with patch_tensor_engine(Layer):
    main()
print(inspect.getsource(Layer.train._method).splitlines()[1].strip())

simulator = Simulator(hosts=1, gpus=4, trace_mode="stream_only")
mesh = simulator.mesh.rename(gpu="dp")
with mesh.activate():
    gradient = torch.ones(4, 4, device="cuda")
comms = monarch.Stream("comms")
lent, borrow = comms.borrow(gradient, mutable=True)
with comms.activate():
    lent.reduce_("dp", "sum")
borrow.drop()
mesh.exit()
print([each.name for each in simulator.commands if each.stream == "comms"])
"""


@pytest.mark.slow
def test_tensors_of_gpus_are_simulated_without_any(tmp_path):
    done = run(tmp_path, SIMULATED_TENSORS, compat="module")
    assert done.stdout.splitlines() == [
        "[0.0, 0.0]",
        "async def train(self):",
        "['borrow', 'reduce(dp, sum)', 'drop']",
    ], done.stderr
