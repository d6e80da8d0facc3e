"""What all meshes have in common: to be sliced, split, flattened, renamed and measured by axis.

It knows names and sizes of axes only. What a mesh of other ranks is made of, the class that mixes
this in says in `_new_with_shape`.
"""

from __future__ import annotations

import builtins
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

from monarch_nb.core.shape.extent import Extent, Shape
from monarch_nb.core.shape.ndslice import Slice, row_major


class MeshTrait(ABC):
    """Mixin for anything that has one member for each rank of a `Shape`.

    Subclasses give `_ndslice`, `_labels` and `_new_with_shape`; every method here that returns a
    mesh leaves this one as it was.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def _ndslice(self) -> Slice:
        """Ranks of the members, in the space of ranks the mesh was made in."""

    @property
    @abstractmethod
    def _labels(self) -> tuple[str, ...]:
        """Names of the axes of `_ndslice`."""

    @abstractmethod
    def _new_with_shape(self, shape: Shape) -> Self:
        """Return the mesh of the same kind with these of its ranks, under these labels."""

    def slice(self, /, **axes: int | builtins.slice) -> Self:
        """Take a part: an int drops its axis, a slice keeps it.

        Example: `mesh.slice(hosts=0, gpus=slice(0, 8, 2))`. `TypeError` for an unknown axis,
        `IndexError` for an int out of range or negative, `ValueError` for a range that is empty
        or out of bounds.
        """
        self._check_labels(axes)
        shape = Shape(self._labels, self._ndslice)
        for label, wanted in axes.items():
            if isinstance(wanted, builtins.slice):
                shape = shape.select(label, wanted)
                continue
            index = operator.index(wanted)
            if not 0 <= index < self.size(label):
                raise IndexError(f"index out of range: {label}={index} in {self.extent}")
            shape = shape.at(label, index)
        return self._new_with_shape(shape)

    def split(self, /, **axes: Sequence[str] | int) -> Self:
        """Cut axes in several; of the new sizes of one axis, one may be left out.

        Example: `mesh.split(gpus=("dp", "tp"), tp=2)` makes `dp` of `gpus / 2`. `TypeError` for an
        unknown axis, `ValueError` for sizes that do not fit, are missing or belong to no axis.
        """
        given = {name: size for name, size in axes.items() if isinstance(size, int)}
        names = {label: names for label, names in axes.items() if not isinstance(names, int)}
        self._check_labels(names)
        labels: list[str] = []
        sizes: list[int] = []
        strides: list[int] = []
        old = self._ndslice
        for label, size, stride in zip(self._labels, old.sizes, old.strides, strict=True):
            new = _names(label, names.get(label, (label,)))
            new_sizes = _sizes(new, size, given)
            labels += new
            sizes += new_sizes
            strides += row_major(new_sizes, stride)
        unused = tuple(name for name in given if name not in labels)
        if unused:
            raise ValueError(f"unused size constraints: {unused}")
        ndslice = Slice(offset=old.offset, sizes=sizes, strides=strides)
        return self._new_with_shape(Shape(labels, ndslice))

    def flatten(self, name: str) -> Self:
        """Make all axes one: `mesh.flatten("rank")`. `ValueError` where its ranks have gaps."""
        old = self._ndslice
        dense = row_major(old.sizes)
        axes = zip(old.sizes, old.strides, dense, strict=True)
        if any(size > 1 and stride != wanted for size, stride, wanted in axes):
            raise ValueError(f"cannot flatten sparse mesh: strides are {old.strides}, not {dense}")
        line = Slice(offset=old.offset, sizes=[len(old)], strides=[1])
        return self._new_with_shape(Shape([name], line))

    def rename(self, /, **labels: str) -> Self:
        """Rename axes: `mesh.rename(gpus="tp")`. `TypeError` for an unknown axis."""
        return self.split(**{old: (new,) for old, new in labels.items()})

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Count members along one axis, several, or all: `mesh.size("gpus")`. Raises `KeyError`."""
        sizes = self.sizes
        labels = self._labels if dim is None else (dim,) if isinstance(dim, str) else dim
        for label in labels:
            if label not in sizes:
                raise KeyError(f"{self.extent} does not have dimension '{label}'")
        return math.prod(sizes[label] for label in labels)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes by axis, in order: `{"hosts": 2, "gpus": 8}`."""
        return dict(zip(self._labels, self._ndslice.sizes, strict=True))

    @property
    def extent(self) -> Extent:
        """Labels and sizes of the mesh."""
        return Extent(self._labels, self._ndslice.sizes)

    def __len__(self) -> int:
        return len(self._ndslice)

    def _sizes_text(self) -> str:
        return ", ".join(f"{label}={size}" for label, size in self.sizes.items())

    def _check_labels(self, labels: Mapping[str, object]) -> None:
        for label in labels:
            if label not in self._labels:
                raise TypeError(f"Shape does not have dimension labeled '{label}'")


class ShapedMesh(MeshTrait):
    """A mesh that has its `Shape` at hand."""

    __slots__ = ()
    _shape: Shape

    @property
    def _ndslice(self) -> Slice:
        return self._shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return self._shape._labels


def _names(label: str, names: Sequence[str]) -> list[str]:
    # A str is a sequence of str too: "dp" would quietly become the axes d and p.
    if isinstance(names, str):
        raise TypeError(f"split({label}=...) takes a tuple of names, not '{names}'")
    return list(names)


def _sizes(names: Sequence[str], total: int, given: Mapping[str, int]) -> list[int]:
    missing = [name for name in names if name not in given]
    known = math.prod(given[name] for name in names if name in given)
    if len(missing) > 1:
        raise ValueError(f"cannot infer the sizes of {missing}: give all but one")
    if known < 1 or total % known or (not missing and known != total):
        raise ValueError(f"cannot split {total} into {list(names)} with sizes {dict(given)}")
    return [given.get(name, total // known) for name in names]
