"""`DeviceMesh`: what programs of Monarch's tensor engine hold instead of a `ProcMesh`.

Rule: another name for what a `ProcMesh` does, with Monarch's names; nothing is decided here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Self, cast, final

import torch

from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.process_groups import AxisGroup
from monarch_nb.tensor.meshes.active import no_mesh
from monarch_nb.tensor.tensor_class import Tensor


@final
class DeviceMesh(MeshTrait):
    """The processes of a mesh, as a place for tensors.

    Example:
        >>> devices = spawn_tensor_engine(procs)           # doctest: +SKIP
        >>> with devices.activate():                       # doctest: +SKIP
        ...     x = devices.rank("gpus") + torch.zeros(3)
    """

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs

    @property
    def _ndslice(self) -> Slice:
        return self.procs._ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.procs._labels

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self.procs._new_with_shape(shape))

    @property
    def names(self) -> tuple[str, ...]:
        """The axes."""
        return self._labels

    def __call__(self, **coordinates: int | slice) -> DeviceMesh:
        """`slice`, as older programs write it."""
        return self.slice(**coordinates)

    def activate(self) -> contextlib.AbstractContextManager[ProcMesh]:
        """See `ProcMesh.activate`."""
        return self.procs.activate()

    def deactivate(self) -> None:
        """See `ProcMesh.deactivate`."""
        self.procs.deactivate()

    def rank(self, dims: str | Sequence[str]) -> Tensor:
        """See `ProcMesh.rank_tensor`."""
        found: Tensor = self.procs.rank_tensor(dims)
        return found

    @property
    def ranks(self) -> dict[str, Tensor]:
        """See `ProcMesh.rank_tensors`."""
        return self.procs.rank_tensors()

    def process_idx(self) -> Tensor:
        """Make a tensor of each rank's number in the mesh that was spawned."""
        place = self._ndslice
        found: Any = self.rank(()) + place.offset
        for label, stride in zip(self._labels, place.strides, strict=True):
            found = found + self.rank(label) * stride
        return cast("Tensor", found)

    def to_tensor(self) -> torch.Tensor:
        """Return the numbers of the ranks, laid out as the mesh is; a local tensor."""
        with no_mesh.activate():
            return torch.tensor(list(self._ndslice), dtype=torch.int).view(self._ndslice.sizes)

    def process_group(self, dims: str | Sequence[str] | None = None) -> AxisGroup:
        """See `ProcMesh.group`."""
        found: AxisGroup = self.procs.group(dims)
        return found

    def to_table(self) -> str:
        """See `ProcMesh.to_table`."""
        return self.procs.to_table()

    def exit(self) -> None:
        """Do nothing: the processes are their owner's to stop."""

    def __repr__(self) -> str:
        return f"<DeviceMesh of {self.procs!r}>"


def spawn_tensor_engine(procs: ProcMesh) -> DeviceMesh:
    """Return the processes of a mesh, as a place for tensors.

    Example:
        >>> devices = spawn_tensor_engine(procs)           # doctest: +SKIP
    """
    return DeviceMesh(procs)
