"""`Tensor`: one on each rank of a mesh, seen from the controller.

What an operation of torch does with it is in `engine/tensors.py`; here is what else it can do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.tensor.engine.batches import DROPPED
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.meshes import streams
from monarch_nb.tensor.meshes.streams import Stream
from monarch_nb.tensor.moving import between_meshes, fetching, reducing
from monarch_nb.tensor.moving.reducing import Reduction


class Tensor(MeshTensor):
    """A tensor on every rank of a mesh, each with values of its own.

    The controller knows its shape, dtype and device.

    Made by operations of torch inside `with mesh.activate():`, never by hand.

    Example:
        >>> with mesh.activate():                              # doctest: +SKIP
        ...     x = torch.ones(3, 4) * mesh.rank_tensor("gpus")
        ...     total = x.reduce("gpus", "sum")
        >>> monarch_nb.tensor.inspect(total, gpus=0)           # doctest: +SKIP

    Idea and names are those of Monarch's tensor engine.
    """

    __slots__ = ()

    def reduce(
        self,
        dims: str | Sequence[str] = (),
        reduction: Reduction = "sum",
        scatter: bool = False,
        mesh: ProcMesh | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Do `monarch_nb.tensor.reduce` of this tensor."""
        return reducing.reduce(self, dims, reduction, scatter, mesh, out)

    def reduce_(
        self,
        dims: str | Sequence[str] = (),
        reduction: Reduction = "sum",
        scatter: bool = False,
        mesh: ProcMesh | None = None,
    ) -> Tensor:
        """Do `monarch_nb.tensor.reduce_` of this tensor."""
        return reducing.reduce_(self, dims, reduction, scatter, mesh)

    def slice_mesh(self, **coordinates: int | slice) -> Tensor:
        """Do `monarch_nb.tensor.slice_mesh` of this tensor."""
        return between_meshes.slice_mesh(self, **coordinates)

    def to_mesh(self, mesh: ProcMesh, stream: Stream | None = None) -> Tensor:
        """Do `monarch_nb.tensor.to_mesh` of this tensor."""
        return between_meshes.to_mesh(self, mesh, stream)

    @property
    def stream(self) -> Stream:
        """The `Stream` on which it is."""
        return streams.stream_of(self)

    def drop(self) -> None:
        """Free it on the ranks now, and not when it is garbage here. It cannot be used any more;
        its views can. Twice is fine."""
        self._ref = DROPPED

    @property
    def dropped(self) -> bool:
        """Return whether `drop` was called."""
        return self._ref is DROPPED

    def full_tensor(self) -> torch.Tensor:
        """Return the values here: of a tensor that is distributed over the mesh all of it, else
        those of the mesh's first rank. Waits."""
        found: torch.Tensor = fetching.fetch_shard(self).get()
        return found
