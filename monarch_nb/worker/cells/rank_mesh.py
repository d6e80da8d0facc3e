"""`mesh` in the cells of a rank: the mesh of these cells, as one of its ranks sees it.

It knows shapes and makes groups. Spawning, stopping and healing are the owner's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, final

from monarch_nb.core.shape.extent import Shape
from monarch_nb.core.shape.mesh_trait import ShapedMesh
from monarch_nb.meshes import process_groups
from monarch_nb.meshes.process_groups import GroupPart, RankIdentity


@final
class RankMesh(ShapedMesh):
    """The mesh that this rank is one of, or a part of it.

    Example:
        >>> dist.all_reduce(x, group=mesh.group("gpus"))              # doctest: +SKIP
        >>> fully_shard(model, mesh=mesh.device_mesh())               # doctest: +SKIP
    """

    def __init__(self, me: RankIdentity, shape: Shape | None = None) -> None:
        self._me = me
        self._shape = me.shape if shape is None else shape

    def _new_with_shape(self, shape: Shape) -> Self:
        return type(self)(self._me, shape)

    @property
    def name(self) -> str:
        """The name given at spawn."""
        return self._me.name

    @property
    def rank(self) -> int:
        """This process's, in the whole mesh."""
        return self._me.rank

    @property
    def ranks(self) -> list[int]:
        """Of the members, in the whole mesh."""
        return self._shape.ranks()

    def group(
        self, dims: str | Sequence[str] | None = None, *, timeout: float | None = None
    ) -> object:
        """Return the `ProcessGroup` of the ranks along an axis, or several, through this rank.

        They wait for one another the first time. `timeout`, in seconds, is for that and for each
        collective from then on; None: 60, or what was said before. Raises `KeyError` for an
        axis that the mesh has not, `TimeoutError` naming the ranks that did not come.
        """
        return process_groups.group(
            self._part(), process_groups.chosen(self._labels, dims), timeout
        )

    def device_mesh(self) -> object:
        """Return the `torch.distributed.device_mesh.DeviceMesh` with these axes.

        Waits for the other members the first time. Raises `RuntimeError` on a rank that is none.
        """
        return process_groups.device_mesh(self._part())

    def _part(self) -> GroupPart:
        me = self._me
        return GroupPart(me.number, me.name, len(me.shape), self._shape)

    def __repr__(self) -> str:
        return f"<mesh {self.name!r} {{{self._sizes_text()}}} seen by rank {self.rank}>"
