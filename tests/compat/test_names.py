"""The names are the very objects of this package."""

import pytest

from tests.compat.running import run

NAMES = """
import importlib
import monarch_nb
import monarch_nb.job
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
import monarch.job
from monarch.job import JobState, JobTrait, LocalJob, MeshAdminConfig, ProcessJob, TelemetryConfig
from monarch.job import exec_command, hosts_from_config, job_load, job_loads, shell
assert ProcessJob is monarch_nb.job.ProcessJob is monarch.job.ProcessJob
from monarch._src.job.process import ProcessJob as Same
assert Same is ProcessJob
from monarch.common.device_mesh import RemoteProcessGroup
assert RemoteProcessGroup is monarch.RemoteProcessGroup

import monarch.builtins
from monarch.builtins.random import set_manual_seed_remote
assert monarch.builtins.log_remote.__name__ == "log_remote"
import monarch.actor_mesh, monarch.proc_mesh, monarch.actor.concurrent
from monarch._src.actor.actor_mesh import Actor, ActorMesh, Channel, Port, PortReceiver, context
assert ActorMesh is monarch_nb.ActorMesh and monarch.actor_mesh.Actor is monarch_nb.Actor
from monarch._src.actor.bootstrap import attach_to_workers
from monarch._src.actor.endpoint import endpoint
from monarch._src.actor.future import Future
from monarch._src.actor.host_mesh import HostMesh, this_host, this_proc
from monarch._src.job.service_identity import new_service_proc_id
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch._rust_bindings.monarch_hyperactor.channel import ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.config import configure
from monarch.config import configured, get_global_config, parametrize_config
assert monarch.configure is configure is monarch.config.configure
from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr
assert get_ipaddr("127.0.0.1", 0, AddrType.IPv4) == "127.0.0.1"
assert get_sockaddr("127.0.0.1", 80) == "127.0.0.1:80"

from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
assert KubernetesJob is monarch_nb.job.KubernetesJob
assert (ImageSpec, KubeConfig) == (monarch_nb.job.ImageSpec, monarch_nb.job.KubeConfig)
from monarch.job import PortForwarder, load_current_job, set_current_job
from monarch._src.job.port_forward import PortForwarder as Same
assert Same is PortForwarder is monarch_nb.job.PortForwarder
assert monarch.job.set_current_job is monarch_nb.job.set_current_job
from monarch.simulator.interface import Simulator
assert Simulator is monarch.Simulator is monarch_nb.tensor.Simulator
from monarch._src.actor.mock import patch_actor, patch_tensor_engine
from monarch.actor import debug_controller
from monarch._src.actor.debugger.debug_controller import DebugController
from monarch._src.actor.debugger.debug_session import DebugSessionInfo

monarch.actor.config.prefix_python_logs_with_actor = False
import monarch_nb.config
assert monarch_nb.config.prefix_python_logs_with_actor is False
assert monarch.actor.config is monarch_nb.config
"""


def test_names_are_those_of_this_package(tmp_path):
    done = run(tmp_path, NAMES)
    assert done.returncode == 0, done.stderr


KEYWORDS = """
import sys
import monarch
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import Actor, endpoint, get_or_spawn_controller, this_host


class Holder(Actor):
    def __init__(self, cls, name="none"):
        self.held = cls, name

    @endpoint
    def get(self):
        return self.held


host = this_host()
assert host.stream_logs and list(host.region.labels) == []
assert not host.is_fake_in_process
same = host.with_python_executable(python_executable=sys.executable)
command = BootstrapCommand(sys.executable, args=["-m", "monarch._src.actor.bootstrap_main"])
procs = same.spawn_procs({"gpus": 1}, bootstrap_command=command)
print(procs.spawn(name="holder", Class=Holder, cls=3).get.call_one().get())
print(get_or_spawn_controller(name="one", Class=Holder, cls=4).get().get.call_one().get())
point = procs.region.point_of_base_rank(0)
print(point.get(key="gpus"), point.get(key="hosts", default=7))
"""


@pytest.mark.slow
def test_keywords_are_monarchs(tmp_path):
    done = run(tmp_path, KEYWORDS)
    assert done.stdout == "(3, 'none')\n(4, 'none')\n0 7\n", done.stderr
