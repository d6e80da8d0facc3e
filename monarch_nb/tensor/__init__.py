"""Tensors on the ranks of a mesh that compute as if they were local.

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "meshes.active": ("coalescing", "get_active_mesh", "no_mesh"),
    "meshes.device_mesh": ("DeviceMesh", "spawn_tensor_engine"),
    "meshes.distributed": ("Mesh", "distribute", "module_to_mesh"),
    "moving.fetching": ("fetch_shard", "inspect", "show"),
    "remote_functions.gradients": ("grad_function", "grad_generator"),
    "moving.between_meshes": ("slice_mesh", "to_mesh"),
    "remote_functions.opaque": ("OpaqueRef",),
    "remote_functions.pipes": ("Pipe", "create_pipe", "remote_generator"),
    "moving.reducing": ("reduce", "reduce_"),
    "remote_functions.remoting": ("Remote", "call_on_shard_and_fetch", "remote"),
    "simulation.simulator": ("Simulator",),
    "meshes.streams": ("Borrow", "Stream", "get_active_stream"),
    "tensor_class": ("Tensor",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  the names are in the table above


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'monarch_nb.tensor' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"monarch_nb.tensor.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
