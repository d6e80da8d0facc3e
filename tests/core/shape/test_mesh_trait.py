"""What every mesh can do, on the smallest mesh there is: one that only knows its ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.shape.extent import Extent, Shape, Slice
from monarch_nb.core.shape.mesh_trait import MeshTrait

fixed = settings(derandomize=True, deadline=None, max_examples=40)
grids = st.lists(st.integers(1, 4), min_size=1, max_size=4)


class Ranks(MeshTrait):
    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def _ndslice(self) -> Slice:
        return self.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.shape.labels)

    def _new_with_shape(self, shape: Shape) -> "Ranks":
        return Ranks(shape)

    def ranks(self) -> list[int]:
        return self.shape.ranks()


def mesh(**sizes: int) -> Ranks:
    return Ranks(Extent.from_dict(sizes).region.as_shape())


@fixed
@given(grids, st.data())
def test_slices_are_those_of_numpy(sizes: list[int], data: st.DataObject) -> None:
    part = mesh(**{f"x{i}": size for i, size in enumerate(sizes)})
    array = np.arange(len(part)).reshape(sizes)
    for _ in range(2):
        wanted: dict[str, int | slice] = {}
        for label, size in part.sizes.items():
            start = data.draw(st.integers(0, size - 1))
            stop = data.draw(st.integers(start + 1, size))
            cut = slice(start, stop, data.draw(st.integers(1, 3)))
            wanted[label] = data.draw(st.sampled_from([start, cut, slice(None)]))
        part, array = part.slice(**wanted), array[tuple(wanted.values())]
        assert part.ranks() == array.ravel().tolist()
        assert tuple(part.sizes.values()) == array.shape


@fixed
@given(grids)
def test_flatten_undoes_split(sizes: list[int]) -> None:
    names = tuple(f"x{i}" for i in range(len(sizes)))
    line = mesh(rank=int(np.prod(sizes)))
    grid = line.split(rank=names, **dict(zip(names[1:], sizes[1:], strict=True)))
    assert grid.sizes == dict(zip(names, sizes, strict=True))
    assert grid.ranks() == line.ranks()
    assert grid.flatten("rank").shape == line.shape


def test_split_works_on_strided_axes() -> None:
    part = mesh(h=2, g=8).slice(g=slice(1, 8, 2)).split(g=("a", "b"), b=2)
    assert part.sizes == {"h": 2, "a": 2, "b": 2}
    assert part.ranks() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert part.slice(b=1).ranks() == [3, 7, 11, 15]


def test_split_several_axes_and_keep_the_others() -> None:
    grid = mesh(host=6, gpu=4, x=5).split(host=("dp", "pp"), gpu=("gpu", "cp"), pp=2, cp=2)
    assert grid.sizes == {"dp": 3, "pp": 2, "gpu": 2, "cp": 2, "x": 5}
    assert mesh(g=4).split(g=("a", "b"), a=4, b=1).sizes == {"a": 4, "b": 1}
    assert mesh(g=4).split(g=("g", "b"), b=4).sizes == {"g": 1, "b": 4}


@pytest.mark.parametrize(
    "axes, error, message",
    [
        ({"zz": ("a", "b")}, TypeError, "Shape does not have dimension labeled 'zz'"),
        ({"g": "ab"}, TypeError, "takes a tuple of names"),
        ({"g": ("a", "b")}, ValueError, "cannot infer the sizes of"),
        ({"g": ("a", "b"), "b": 3}, ValueError, "cannot split 4 into"),
        ({"g": ("a", "b"), "a": 2, "b": 4}, ValueError, "cannot split 4 into"),
        ({"g": ("a", "b"), "b": 0}, ValueError, "cannot split 4 into"),
        ({"g": ("a", "b"), "b": -2}, ValueError, "cannot split 4 into"),
        ({"g": ("a", "b"), "b": 2, "c": 2}, ValueError, r"unused size constraints: \('c',\)"),
        ({"g": ("h",)}, ValueError, "different labels"),
    ],
)
def test_split_errors(axes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mesh(h=2, g=4).split(**axes)


def test_flatten_keeps_the_offset() -> None:
    second = mesh(a=2, b=2, c=3).slice(a=1).flatten("rank")
    assert (second.sizes, second.ranks()) == ({"rank": 6}, [6, 7, 8, 9, 10, 11])
    assert mesh().flatten("rank").sizes == {"rank": 1}
    assert mesh(h=2, g=4).slice(h=slice(1, 2), g=slice(2, 4)).flatten("r").ranks() == [6, 7]


@pytest.mark.parametrize("cut", [slice(0, 4, 2), slice(0, 2), slice(3, 4)])
def test_flatten_refuses_gaps(cut: slice) -> None:
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        mesh(h=2, g=4).slice(g=cut).flatten("rank")


def test_flatten_refuses_a_line_with_gaps() -> None:
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        Ranks(Shape(["g"], Slice(offset=0, sizes=[100], strides=[2]))).flatten("rank")


def test_rename() -> None:
    renamed = mesh(h=2, g=4).rename(g="tp", h="g")
    assert (renamed.sizes, renamed.ranks()) == ({"g": 2, "tp": 4}, list(range(8)))
    with pytest.raises(TypeError, match="Shape does not have dimension labeled 'zz'"):
        mesh(h=2).rename(zz="a")
    with pytest.raises(ValueError, match="different labels"):
        mesh(h=2, g=4).rename(h="g")


@pytest.mark.parametrize(
    "axes, error, message",
    [
        ({"zz": 0}, TypeError, "^Shape does not have dimension labeled 'zz'$"),
        ({"g": 4}, IndexError, "index out of range"),
        ({"g": -1}, IndexError, "index out of range"),
        ({"g": "1"}, TypeError, "integer"),
        ({"g": slice(0, 5)}, ValueError, "out of bounds"),
        ({"g": slice(4, None)}, ValueError, "out of bounds"),
        ({"g": slice(-2, None)}, ValueError, "out of bounds"),
        ({"g": slice(2, 2)}, ValueError, "empty"),
    ],
)
def test_slice_errors(axes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mesh(h=2, g=4).slice(**axes)


def test_slice_takes_numpy_ints_and_any_label() -> None:
    part = mesh(self=2, g=4).slice(self=np.int64(1), g=slice(np.int64(1), None))
    assert part.ranks() == [5, 6, 7]
    assert all(type(rank) is int for rank in part.ranks())
    assert mesh(self=2).rename(self="x").split(x=("self",)).sizes == {"self": 2}


def test_measures() -> None:
    grid = mesh(h=2, g=4)
    assert list(grid.sizes.items()) == [("h", 2), ("g", 4)]
    assert (grid.size(), grid.size("g"), grid.size(["h", "g"]), grid.size([])) == (8, 4, 8, 1)
    assert (grid.extent, len(grid)) == (Extent(["h", "g"], [2, 4]), 8)
    assert (mesh().sizes, mesh().size(), len(mesh())) == ({}, 1, 1)
    for unknown in ("zz", ["h", "zz"]):
        with pytest.raises(KeyError, match="does not have dimension 'zz'"):
            grid.size(unknown)


def test_the_parts_to_give_are_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MeshTrait()
