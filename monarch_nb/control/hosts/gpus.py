"""Which GPUs the ranks of a new mesh see: `%mesh up --device`.

Through CUDA_VISIBLE_DEVICES alone, so it holds for everything that a rank runs or starts.
"""

from __future__ import annotations

import dataclasses

from monarch_nb.data import gpus
from monarch_nb.meshes.bootstrap import BootstrapCommand, default_bootstrap_cmd


def command_for(device: str) -> BootstrapCommand | None:
    """Say how ranks are started: `auto` changes nothing, `cpu` hides the GPUs, `cuda` gives each
    rank one of its host's. With more ranks than GPUs these are shared in turn."""
    if device == "auto":
        return None
    if device == "cpu":
        return default_bootstrap_cmd().with_env({gpus.VISIBLE: ""})
    return dataclasses.replace(default_bootstrap_cmd(), own_gpu=True)


def check_here(device: str) -> None:
    """Raise `ValueError` where ranks of this host cannot have one."""
    if device == "cuda" and not gpus.visible_gpus():
        raise ValueError("this host has no GPU that a rank could use. Type: --device cpu")
