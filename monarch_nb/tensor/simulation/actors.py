"""`patch_tensor_engine`: actors whose tensors are simulated, for tests of programs.

Rule: the actors are real, and run what they run; only meshes that they activate are another thing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from monarch_nb.actors.definition import Actor
from monarch_nb.actors.stand_ins import StandIn
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.process.context import current_instance
from monarch_nb.tensor.meshes.active import stand_in_for_meshes_of
from monarch_nb.tensor.meshes.device_mesh import DeviceMesh
from monarch_nb.tensor.simulation.engine import simulated

Factory = Callable[[ProcMesh], DeviceMesh]


def patch_tensor_engine(actor_class: type[Actor], mock_factory: Factory | None = None) -> StandIn:
    """Have actors of this class, that this process spawns, find simulated meshes when they activate
    a mesh: a context manager and a decorator, as `patch_actor`.

    Args:
        mock_factory: what makes the mesh that stands in for another one, once for each in each
            actor; else it is a simulated one with the same axes.

    Example:
        >>> with patch_tensor_engine(Trainer):             # doctest: +SKIP
        ...     main()
    """
    factory = mock_factory or _same_axes
    construct: Any = actor_class.__init__

    @functools.wraps(construct)
    def construct_simulating(self: Actor, *args: Any, **kwargs: Any) -> None:
        stand_in_for_meshes_of(current_instance(), lambda mesh: factory(mesh).procs)
        construct(self, *args, **kwargs)

    members = {"__init__": construct_simulating, "__module__": actor_class.__module__}
    return StandIn(actor_class, type(actor_class.__name__, (actor_class,), members))


def _same_axes(mesh: ProcMesh) -> DeviceMesh:
    found, _ = simulated(f"{mesh.name}-simulated", dict(mesh.sizes))
    return DeviceMesh(found)
