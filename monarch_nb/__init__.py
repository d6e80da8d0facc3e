"""JupyterLab for distributed PyTorch: a mesh of ranks driven from a notebook or a script.

The names below are the whole public interface; they are loaded when first used, so that the light
processes of a mesh (the host agent) never import what they do not need.
"""

from __future__ import annotations

import os
from typing import Any

from monarch_nb import late
from monarch_nb.config import VERSION as __version__  # noqa: N811

_HOMES = {
    "actors.definition": ("Actor", "concurrent_endpoint", "endpoint"),
    "actors.endpoints": ("Accumulator", "Endpoint", "as_endpoint", "returns_future", "send"),
    "process.futures.future": ("Future",),
    "actors.ports": ("Channel", "Port", "PortReceiver", "RankedPortReceiver"),
    "process.context": ("Context", "context", "current_actor_name", "current_rank", "current_size"),
    "process.ids": ("ProcId", "Uid"),
    "process.settings": ("configure",),
    "meshes.actor_mesh": ("ActorMesh",),
    "meshes.proc_mesh": ("HostMesh", "ProcMesh", "this_host", "this_proc"),
    "meshes.workspace": ("Workspace",),
    "meshes.bootstrap": ("BootstrapCommand", "default_bootstrap_cmd"),
    "process.supervision.supervision": ("MeshFailure",),
    "services.controllers": ("get_or_spawn_controller",),
    "services.metrics": ("log", "run"),
    "services.metric_writers": ("log_to",),
    "services.transfer.rdma": ("RDMAAction", "RDMABuffer"),
    "services.transfer.tensors": ("recv_tensor", "send_tensor"),
    "services.telemetry": ("get_meter", "span", "traced"),
    "core.shape.extent": ("Extent", "NDSlice", "Point", "Region", "Selection", "Shape", "Slice"),
    "core.shape.values": ("ValueMesh",),
    "control.client": ("shutdown_context",),
    "control.faults": ("unhandled_fault_hook",),
    "control.monarch_aliases": ("heal_mesh", "proc_mesh"),
    "control.hosts.attach": (
        "ChannelTransport",
        "attach",
        "attach_to_workers",
        "enable_transport",
        "run_worker_loop_forever",
        "run_worker_loop_until_shutdown",
        "start_worker_loop_forever",
    ),
    "errors": (
        "ActorError",
        "AuthError",
        "BrokenError",
        "CallCancelled",
        "CallInterrupted",
        "ClosedError",
        "DecodeError",
        "DeviceMeshError",
        "EncodeError",
        "LaunchError",
        "LimitError",
        "LocalProtocolError",
        "MeshError",
        "MeshInternalError",
        "ProtocolError",
        "RankExited",
        "RankNameError",
        "RankUnreachable",
        "RemoteException",
        "RemoteProtocolError",
        "SupervisionError",
    ),
    "tensor.meshes.distributed": ("Mesh", "distribute", "module_to_mesh"),
    "notebook.extension": ("load_ipython_extension", "unload_ipython_extension"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604  the names are in the table above


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch_nb' has no attribute {name!r}")
    found = getattr(late.load(home), name)
    if name != "unhandled_fault_hook":  # a user's assignment must be told from the default
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


if os.environ.get("MONARCH_NB_COMPAT", "0") not in {"", "0"}:
    late.load(late.COMPAT)
