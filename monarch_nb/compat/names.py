"""The table of what is served: a name of Monarch's, and where it is here.

Rule: a name stands for the very object of `monarch_nb`. What would have no effect here, or is
advertised by Monarch and broken there, is not in the table.
"""

from __future__ import annotations

from typing import Final

import monarch_nb

_ACTOR: Final = {
    name: f"monarch_nb:{name}"
    for name in monarch_nb.__all__
    if name not in {"__version__", "load_ipython_extension", "unload_ipython_extension"}
}


def _from(home: str, names: str) -> dict[str, str]:
    return {name: f"{home}{name}" for name in names.split()}


def _same(names: str) -> dict[str, str]:
    return _from("monarch_nb:", names)


def _tensor(names: str) -> dict[str, str]:
    return _from("monarch_nb.tensor:", names)


_SHAPES: Final = "Extent NDSlice Point Region Selection Shape Slice"
_JOB: Final = _from(
    "monarch_nb.job:",
    "DEFAULT_JOB_PATH JobState JobTrait LocalJob MeshAdminConfig ProcessJob TelemetryConfig "
    "PortForwarder SSHJob SlurmJob exec_command hosts_from_config job_load job_loads "
    "load_current_job set_current_job shell",
)
_KUBERNETES: Final = _from("monarch_nb.job:", "ImageSpec KubeConfig KubernetesJob")
_WORKERS: Final = _same(
    "attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown "
    "start_worker_loop_forever"
)
_SUPERVISION: Final = _same("MeshFailure SupervisionError")
_PROC_MESH: Final = {
    **_same("HostMesh ProcMesh get_or_spawn_controller"),
    **_from("monarch_nb.meshes.proc_mesh:", "register_proc_mesh_spawn_callback"),
    **_from("monarch_nb.meshes.proc_mesh:", "unregister_proc_mesh_spawn_callback"),
}
_ACTOR_MESH: Final = {
    **_same("Accumulator Actor ActorError ActorMesh Channel Context Endpoint MeshFailure Point"),
    **_same("Port PortReceiver RankedPortReceiver Shape SupervisionError ValueMesh as_endpoint"),
    **_same("attach context current_actor_name current_rank current_size enable_transport"),
    **_same("endpoint send shutdown_context"),
    "Instance": "monarch_nb.process.instance:Instance",
}
_BUILTINS: Final = "monarch_nb.tensor.remote_functions.builtins:"
_LOGS: Final = _from(_BUILTINS, "log_remote set_logging_level_remote")
_GROUPS: Final = {"RemoteProcessGroup": "monarch_nb.meshes.process_groups:AxisGroup"}

_DEBUG: Final = "monarch_nb.control.debug.controller:"

# module -> name -> where it is here ("module:name"; "module:" is the module itself)
SERVED: Final[dict[str, dict[str, str]]] = {
    "monarch": {
        **_same(f"{_SHAPES} ValueMesh Future heal_mesh proc_mesh"),
        **_same("RemoteException distribute module_to_mesh"),
        **_tensor("DeviceMesh Tensor call_on_shard_and_fetch fetch_shard get_active_mesh inspect"),
        **_tensor("no_mesh reduce reduce_ remote show slice_mesh to_mesh OpaqueRef Pipe Stream"),
        **_tensor("coalescing create_pipe get_active_stream grad_function grad_generator"),
        **_tensor("remote_generator Simulator"),
        **_GROUPS,
        **_from(
            "monarch_nb.compat.config:",
            "clear_runtime_config configure configured get_global_config get_runtime_config",
        ),
    },
    "monarch.distributed": _tensor("Mesh distribute module_to_mesh"),
    "monarch.fetch": _tensor("call_on_shard_and_fetch fetch_shard inspect show"),
    "monarch.mesh_controller": {**_same("RemoteException"), **_tensor("spawn_tensor_engine")},
    "monarch.common": {},
    "monarch.common.opaque_ref": _tensor("OpaqueRef"),
    "monarch.common.pipe": _tensor("Pipe create_pipe remote_generator"),
    "monarch.common.stream": _tensor("Stream get_active_stream"),
    "monarch.gradient_generator": _tensor("grad_function grad_generator"),
    "monarch.common.device_mesh": {
        **_tensor("DeviceMesh get_active_mesh no_mesh slice_mesh to_mesh"),
        **_GROUPS,
    },
    "monarch.common.remote": _tensor("Remote call_on_shard_and_fetch remote"),
    "monarch.common.tensor": _tensor("Tensor reduce reduce_"),
    "monarch.actor": {
        **_ACTOR,
        "config": "monarch_nb.config:",
        "EndpointProperty": "monarch_nb.actors.definition:EndpointProperty",
        "MeshTrait": "monarch_nb.core.shape.mesh_trait:MeshTrait",
        **_from(_DEBUG, "debug_controller"),
    },
    "monarch.rdma": _from(
        "monarch_nb.rdma:",
        "RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning "
        "RDMAWriteTransferWarning get_rdma_backend is_ibverbs_available is_rdma_available",
    ),
    "monarch.simulator": {},
    "monarch.simulator.interface": _tensor("Simulator"),
    "monarch.spmd": _from(
        "monarch_nb.spmd:", "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async"
    ),
    "monarch.job": _JOB,
    "monarch.job.kubernetes": _KUBERNETES,
    "monarch.job.spmd": _from("monarch_nb.job:", "StoreJob"),
    "monarch._src.job": {},
    "monarch._src.job.host_mesh": _from("monarch_nb.job:", "hosts_from_config"),
    "monarch._src.job.job": _JOB,
    "monarch._src.job.job_state": _from("monarch_nb.job:", "JobState"),
    "monarch._src.job.kubernetes": _KUBERNETES,
    "monarch._src.job.port_forward": _from("monarch_nb.job:", "PortForwarder"),
    "monarch._src.job.process": _from("monarch_nb.job:", "ProcessJob"),
    "monarch._src.job.shell": _from("monarch_nb.job:", "shell"),
    "monarch._src.job.slurm": _from("monarch_nb.job:", "SlurmJob"),
    "monarch._src.job.spmd": _from("monarch_nb.job:", "StoreJob"),
    "monarch.common.future": _same("Future"),
    "monarch.exceptions": _same("ActorError DeviceMeshError RemoteException SupervisionError"),
    "monarch.tools": {},
    "monarch.tools.config": _same("Workspace"),
    "monarch.tools.config.environment": _from(
        "monarch_nb.meshes.workspace:", "CondaEnvironment Environment"
    ),
    "monarch.tools.config.workspace": {
        **_same("Workspace"),
        **_from("monarch_nb.meshes.workspace:", "ACTIVE_CONDA_ENV"),
    },
    "monarch.actor_mesh": _ACTOR_MESH,
    "monarch.builtins": _LOGS,
    "monarch.builtins.log": _LOGS,
    "monarch.builtins.random": _from(
        _BUILTINS,
        "get_rng_state_all_cuda_remote get_rng_state_remote manual_seed_all_cuda_remote "
        "manual_seed_cuda_remote random_seed_remote seed_remote set_manual_seed_remote "
        "set_rng_state_all_cuda_remote set_rng_state_remote",
    ),
    "monarch.proc_mesh": _PROC_MESH,
    "monarch.actor.concurrent": _same("concurrent_endpoint"),
    "monarch._src": {},
    "monarch._src.actor": {},
    "monarch._src.actor.actor_mesh": _ACTOR_MESH,
    "monarch._src.actor.bootstrap": _WORKERS,
    "monarch._src.actor.concurrent": _same("concurrent_endpoint"),
    "monarch._src.actor.debugger": {},
    "monarch._src.actor.debugger.debug_controller": _from(
        _DEBUG, "DebugController debug_controller"
    ),
    "monarch._src.actor.debugger.debug_session": _from(_DEBUG, "DebugSessionInfo"),
    "monarch._src.actor.endpoint": {
        **_same("Endpoint endpoint"),
        **_from("monarch_nb.actors.definition:", "EndpointProperty"),
    },
    "monarch._src.actor.future": _same("Future"),
    "monarch._src.actor.host_mesh": {
        **_same("HostMesh default_bootstrap_cmd this_host this_proc"),
    },
    "monarch._src.actor.mock": {
        **_from("monarch_nb.actors.stand_ins:", "patch_actor"),
        **_from("monarch_nb.tensor.simulation.actors:", "patch_tensor_engine"),
    },
    "monarch._src.actor.proc_mesh": _PROC_MESH,
    "monarch._src.actor.returns_future": _same("returns_future"),
    "monarch._src.actor.shape": {
        **_same(_SHAPES),
        **_from("monarch_nb.core.shape.mesh_trait:", "MeshTrait"),
    },
    "monarch._src.actor.supervision": _same("unhandled_fault_hook"),
    "monarch._src.actor.telemetry": {
        **_same("get_meter span traced"),
        **_from("monarch_nb.services.telemetry:", "TracingForwarder"),
    },
    "monarch._rust_bindings": {},
    "monarch._rust_bindings.monarch_hyperactor": {},
    "monarch._rust_bindings.monarch_hyperactor.channel": {
        **_same("ChannelTransport"),
        **_from("monarch_nb.compat.transports:", "BindSpec"),
    },
    "monarch._rust_bindings.monarch_hyperactor.host_mesh": _same("BootstrapCommand HostMesh"),
    "monarch._rust_bindings.monarch_hyperactor.supervision": _SUPERVISION,
    "monarch._rust_bindings.monarch_hyperactor.shape": _same(_SHAPES),
    "monarch._rust_bindings.monarch_hyperactor.mailbox": _from(
        "monarch_nb.actors.undeliverable:", "UndeliverableMessageEnvelope"
    ),
    "monarch._rust_bindings.monarch_hyperactor.proc": _same("ProcId Uid"),
}
SAME_MODULE: Final = {
    "monarch._src.actor.config": "monarch_nb.config",
    "monarch._src.job.service_identity": "monarch_nb.compat.service_identity",
    "monarch.config": "monarch_nb.compat.config",
    "monarch.tools.network": "monarch_nb.compat.network",
    "monarch._rust_bindings.monarch_hyperactor.config": "monarch_nb.compat.config",
}
"""Modules that are one of ours under another name: what is assigned there takes effect."""
