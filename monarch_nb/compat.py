"""`import monarch_nb.compat` makes `import monarch` mean this package: its programs run unchanged.

Only names of the public interface are served, each the very object of `monarch_nb`. What later
releases will bring says so when it is asked for. Setting `MONARCH_NB_COMPAT=1` has the same effect
with any import of `monarch_nb`; it is set here for the ranks. If the real `monarch` is installed,
it is hidden from here on.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import monarch_nb

VARIABLE: Final = "MONARCH_NB_COMPAT"

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
_GROUPS: Final = {"RemoteProcessGroup": "monarch_nb.meshes.process_groups:AxisGroup"}

# module -> name -> where it is here ("module:name"; "module:" is the module itself)
_SERVED: Final[dict[str, dict[str, str]]] = {
    "monarch": {
        **_same(f"{_SHAPES} ValueMesh Future heal_mesh proc_mesh"),
        **_same("RemoteException distribute module_to_mesh"),
        **_tensor("DeviceMesh Tensor call_on_shard_and_fetch fetch_shard get_active_mesh inspect"),
        **_tensor("no_mesh reduce reduce_ remote show slice_mesh to_mesh OpaqueRef Pipe Stream"),
        **_tensor("coalescing create_pipe get_active_stream grad_function grad_generator"),
        **_tensor("remote_generator"),
        **_GROUPS,
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
    },
    "monarch.rdma": _from(
        "monarch_nb.rdma:",
        "RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning "
        "RDMAWriteTransferWarning get_rdma_backend is_ibverbs_available is_rdma_available",
    ),
    "monarch.spmd": _from(
        "monarch_nb.spmd:", "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async"
    ),
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
    "monarch._src": {},
    "monarch._src.actor": {},
    "monarch._src.actor.proc_mesh": {
        **_same("HostMesh ProcMesh"),
        **_from("monarch_nb.meshes.proc_mesh:", "register_proc_mesh_spawn_callback"),
        **_from("monarch_nb.meshes.proc_mesh:", "unregister_proc_mesh_spawn_callback"),
    },
    "monarch._src.actor.telemetry": {
        **_same("get_meter span traced"),
        **_from("monarch_nb.services.telemetry:", "TracingForwarder"),
    },
    "monarch._rust_bindings": {},
    "monarch._rust_bindings.monarch_hyperactor": {},
    "monarch._rust_bindings.monarch_hyperactor.supervision": _same("MeshFailure SupervisionError"),
    "monarch._rust_bindings.monarch_hyperactor.shape": _same(_SHAPES),
    "monarch._rust_bindings.monarch_hyperactor.mailbox": _from(
        "monarch_nb.actors.undeliverable:", "UndeliverableMessageEnvelope"
    ),
    "monarch._rust_bindings.monarch_hyperactor.proc": _same("ProcId Uid"),
}
_ALIASES: Final = {"monarch.config": "monarch_nb.config"}

# what is asked for most, and what it belongs to
_LATER: Final = {
    "tensors on a mesh": "Simulator function_resolvers set_meta world_mesh",
    "jobs": (
        "job JobTrait LocalJob ProcessJob SlurmJob SPMDJob hosts_from_config remotemount "
        "gather_mount"
    ),
    "the debugger": "debug_controller",
    "tools": "tools cli",
    "the tensor engine": "builtins simulator",
    "settings of the runtime": (
        "configure configured get_global_config get_runtime_config clear_runtime_config"
    ),
}
_PART_OF: Final = {name: part for part, names in _LATER.items() for name in names.split()}


class _Served(ModuleType):
    """A module whose names are looked up here when they are first used."""

    def __getattr__(self, name: str) -> Any:
        found = _find(self.__name__, name)
        if name != "unhandled_fault_hook":  # a user's assignment must be told from the default
            vars(self)[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_SERVED[self.__name__]})


class _Alias(ModuleType):
    """A module of ours under another name: what is assigned here takes effect there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._target(), name, value)

    def _target(self) -> ModuleType:
        return importlib.import_module(_ALIASES[vars(self)["__name__"]])


def _find(module: str, name: str) -> Any:
    home = _SERVED[module].get(name)
    if home is not None:
        place, _, attribute = home.partition(":")
        found = importlib.import_module(place)
        return getattr(found, attribute) if attribute else found
    full = f"{module}.{name}"
    if full in _SERVED or full in _ALIASES:
        return importlib.import_module(full)
    if name in _PART_OF:
        raise ImportError(_not_yet(full, _PART_OF[name]), name=full)
    raise AttributeError(f"module {module!r} has no attribute {name!r} in monarch_nb")


def _not_yet(full: str, part: str) -> str:
    version = monarch_nb.__version__
    return (
        f"{full} is not part of this release (monarch_nb {version}): {part} come with a later one"
    )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `monarch` and what is below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != "monarch":
            return None
        if fullname not in _SERVED and fullname not in _ALIASES:
            raise ModuleNotFoundError(_refusal(fullname), name=fullname)
        is_package = any(other.startswith(f"{fullname}.") for other in (*_SERVED, *_ALIASES))
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if spec.name in _ALIASES:
            return _Alias(spec.name)
        return _Served(spec.name, f"`{spec.name}` as monarch_nb serves it.")

    def exec_module(self, module: ModuleType) -> None:
        names: Mapping[str, str] = _SERVED.get(module.__name__, {})
        if names:
            vars(module)["__all__"] = sorted(names)


def _refusal(fullname: str) -> str:
    for piece in fullname.split(".")[1:]:
        if piece in _PART_OF:
            return _not_yet(fullname, _PART_OF[piece])
    return f"{fullname} is not part of this release (monarch_nb {monarch_nb.__version__})"


def install() -> None:
    """Serve `monarch`. Raises `ImportError` if the real one has been imported before."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "monarch" in sys.modules:
        raise ImportError(
            "another monarch has been imported already; import monarch_nb.compat before it"
        )
    sys.meta_path.insert(0, _Finder())
    os.environ[VARIABLE] = "1"  # ranks import the user's modules, which import monarch


install()
