"""Which GPUs the ranks of a new mesh see: `%mesh up --device`.

Through CUDA_VISIBLE_DEVICES alone, so it holds for everything that a rank runs or starts.
"""

from __future__ import annotations

from monarch_nb.core.shape.extent import Point
from monarch_nb.meshes import devices
from monarch_nb.meshes.bootstrap import BootstrapCommand, Command, default_bootstrap_cmd


def command_for(device: str, per_host: int) -> Command | None:
    """Say how ranks are started: `auto` changes nothing, `cpu` hides the GPUs, `cuda` gives each
    rank one of its host's.

    With more ranks than GPUs these are shared in turn. Raises `ValueError` where there is none.
    """
    if device == "auto":
        return None
    if device == "cpu":
        return default_bootstrap_cmd().with_env({devices.VISIBLE: ""})
    gpus = devices.visible_gpus()
    if not gpus:
        raise ValueError("this host has no GPU that a rank could use. Type: --device cpu")
    return lambda point: _with_gpu(point, gpus, per_host)


def _with_gpu(point: Point, gpus: tuple[str, ...], per_host: int) -> BootstrapCommand:
    mine = gpus[point.rank % per_host % len(gpus)]
    return default_bootstrap_cmd().with_env({devices.VISIBLE: mine})
