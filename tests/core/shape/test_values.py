"""ValueMesh: every way to read it, the table's errors, laziness and pickling."""

import functools
import pickle
import random
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.shape.extent import Extent, Point, Shape, Slice
from monarch_nb.core.shape.values import ValueMesh

fixed = settings(derandomize=True, deadline=None, max_examples=40)
HG = Extent(["h", "g"], [2, 3])


def lazy(shape, makers):
    return ValueMesh._lazy(shape, makers, lambda _, make: make())


def letters() -> ValueMesh[str]:
    return ValueMesh(HG.region.as_shape(), "abcdef")


class Counted:
    """Thunks that count how often each was called."""

    def __init__(self, count: int) -> None:
        self.calls = [0] * count

    def thunk(self, rank: int) -> Callable[[], str]:
        def make() -> str:
            self.calls[rank] += 1
            return "abcdef"[rank]

        return make

    def mesh(self, shape: Shape) -> ValueMesh[str]:
        return lazy(shape, [self.thunk(rank) for rank in range(len(shape))])


def test_read_by_rank_place_and_point() -> None:
    vm = letters()
    assert [vm[rank] for rank in range(6)] == list("abcdef")
    assert vm[{"g": 2, "h": 1}] == vm[Point(5, HG)] == vm.item(h=1, g=2) == vm.get(5) == "f"
    assert vm[np.int64(4)] == "e"


def test_iteration_is_points_and_values_in_rank_order() -> None:
    vm = letters()
    pairs = [(Point(rank, HG), value) for rank, value in enumerate("abcdef")]
    assert list(vm) == list(vm.items()) == pairs
    assert next(iter(vm)) == next(vm.items()) == pairs[0]
    assert all(vm[point] == value for point, value in vm)
    assert (vm.values(), len(vm)) == (list("abcdef"), 6)


def test_values_given_out_are_a_copy() -> None:
    vm = letters()
    vm.values().clear()
    assert vm.values() == list("abcdef")


def test_measures() -> None:
    vm = letters()
    assert (vm.sizes, vm.size("g"), vm.extent) == ({"h": 2, "g": 3}, 3, HG)
    assert (vm.shape, vm.shape.labels) == (HG.region.as_shape(), ["h", "g"])


@pytest.mark.parametrize("count", [0, 2, 7])
def test_wrong_count(count: int) -> None:
    message = f"^invalid value mesh: expected 6 ranks, but contains {count} ranks$"
    with pytest.raises(ValueError, match=message):
        ValueMesh(HG.region.as_shape(), range(count))


@pytest.mark.parametrize("rank", [-1, 6])
def test_rank_out_of_range(rank: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        letters().get(rank)
    with pytest.raises(IndexError, match="out of range"):
        letters()[rank]


@pytest.mark.parametrize(
    "place, error, message",
    [
        ({}, KeyError, "h"),
        ({"h": 1}, KeyError, "g"),
        ({"h": 1, "g": 0, "zz": 0}, KeyError, "item has extra dimensions"),
        ({"h": 2, "g": 0}, IndexError, "out of range"),
        ({"h": 0, "g": -1}, IndexError, "out of range"),
    ],
)
def test_item_errors(place: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        letters().item(**place)
    with pytest.raises(error, match=message):
        letters()[place]


def test_item_of_a_single_value_needs_no_place() -> None:
    assert letters().slice(h=1, g=2).item() == "f"
    assert letters().slice(h=slice(1, 2), g=slice(2, 3)).item() == "f"
    assert ValueMesh(Shape.unity(), ["x"])[{}] == "x"
    with pytest.raises(KeyError, match="extra dimensions"):
        ValueMesh(Shape.unity(), ["x"]).item(h=0)


@fixed
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_slices_hold_what_numpy_would(sizes: list[int], data: st.DataObject) -> None:
    extent = Extent([f"x{i}" for i in range(len(sizes))], sizes)
    array = np.arange(100, 100 + extent.nelements).reshape(sizes)
    vm = ValueMesh(extent.region.as_shape(), array.ravel().tolist())
    for _ in range(2):
        wanted: dict[str, int | slice] = {}
        for label, size in vm.sizes.items():
            start = data.draw(st.integers(0, size - 1))
            cut = slice(start, None, data.draw(st.integers(1, 2)))
            wanted[label] = data.draw(st.sampled_from([start, cut]))
        vm, array = vm.slice(**wanted), array[tuple(wanted.values())]
        assert vm.values() == array.ravel().tolist()
        assert all(array[tuple(point.values())] == value for point, value in vm)


def test_reshaping_keeps_values() -> None:
    vm = letters()
    assert vm.rename(h="x").item(x=1, g=0) == "d"
    assert vm.flatten("rank").values() == vm.values()
    assert vm.flatten("rank").split(rank=("g", "h"), h=2).item(g=2, h=0) == "e"
    assert vm.slice(h=1).flatten("rank")[1] == "e"
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        vm.slice(g=slice(0, 3, 2)).flatten("rank")


def test_points_count_within_the_slice() -> None:
    right = letters().slice(g=slice(1, 3))
    assert [(point.rank, dict(point)) for point, _ in right][2] == (2, {"h": 1, "g": 0})
    assert (right[2], right[{"h": 1, "g": 0}]) == ("e", "e")


def test_from_indexed_in_any_order_last_write_wins() -> None:
    pairs = [(rank, rank * rank) for rank in range(6)]
    random.Random(4).shuffle(pairs)
    shape = HG.region.as_shape()
    assert ValueMesh.from_indexed(shape, [(3, "old"), *pairs]).values() == [0, 1, 4, 9, 16, 25]
    offset = shape.at("h", 1)
    assert ValueMesh.from_indexed(offset, enumerate("xyz")).values() == ["x", "y", "z"]


def test_from_indexed_errors() -> None:
    shape = Shape(["g"], Slice.new_row_major([3]))
    with pytest.raises(ValueError, match="expected 3 ranks, but contains 2 ranks"):
        ValueMesh.from_indexed(shape, [(0, "a"), (2, "c"), (2, "C")])
    for rank in (3, -1):
        with pytest.raises(ValueError, match="out of range"):
            ValueMesh.from_indexed(shape, [(0, "a"), (1, "b"), (rank, "c")])


def test_lazy_values_are_made_once_when_looked_at() -> None:
    counted = Counted(6)
    vm = counted.mesh(HG.region.as_shape())
    assert (len(vm), counted.calls) == (6, [0] * 6)
    assert (vm[4], vm.item(h=1, g=1), counted.calls) == ("e", "e", [0, 0, 0, 0, 1, 0])
    assert (vm.values(), vm.values(), counted.calls) == (list("abcdef"),) * 2 + ([1] * 6,)


def test_slices_share_what_was_made() -> None:
    counted = Counted(6)
    vm = counted.mesh(HG.region.as_shape())
    bottom = vm.slice(h=1)
    assert counted.calls == [0] * 6
    assert (bottom[0], vm[3], vm.slice(g=0)[1]) == ("d", "d", "d")
    assert counted.calls == [0, 0, 0, 1, 0, 0]


def test_what_a_value_was_made_from_is_let_go() -> None:
    payload = np.zeros(1)
    gone = weakref.ref(payload)
    vm = lazy(Shape(["g"], Slice.new_row_major([1])), [functools.partial(len, payload)])
    del payload
    part = vm.slice(g=0)
    assert gone() is not None
    assert (vm[0], gone(), part.item()) == (1, None, 1)


def test_a_look_from_within_another_sees_the_first_value() -> None:
    looks: list[object] = []

    def make() -> object:
        if not looks:
            looks.append(None)
            looks.append(vm[0])
        return object()

    vm = lazy(Shape.unity(), [make])
    assert vm[0] is looks[1]


def test_a_failing_value_fails_each_look() -> None:
    def fail() -> None:
        looks.append(1)
        raise LookupError

    looks: list[int] = []
    vm = lazy(Shape(["g"], Slice.new_row_major([2])), [fail, lambda: "fine"])
    for _ in range(2):
        with pytest.raises(LookupError):
            vm.values()
    assert (vm[1], len(looks)) == ("fine", 2)


def test_callables_are_plain_values_unless_lazy() -> None:
    assert ValueMesh(Shape.unity(), [len])[0] is len


def test_pickles_with_and_without_lazy_values() -> None:
    shape = HG.region.as_shape()
    for vm in (letters(), Counted(6).mesh(shape), Counted(6).mesh(shape).slice(h=1)):
        again = pickle.loads(pickle.dumps(vm))
        assert type(again) is ValueMesh
        assert (again.shape, again.values()) == (vm.shape, vm.values())


def test_text() -> None:
    assert repr(letters().slice(h=1)) == (
        "ValueMesh({g: 3}):\n  (({'g': 0/3}, 'd'), ({'g': 1/3}, 'e'), ({'g': 2/3}, 'f'))"
    )
    lines = repr(Counted(6).mesh(HG.region.as_shape())).splitlines()
    assert (lines[0], lines[1]) == ("ValueMesh({h: 2, g: 3}):", "  (({'h': 0/2, 'g': 0/3}, 'a'),")
    assert (len(lines), lines[6]) == (7, "   ({'h': 1/2, 'g': 2/3}, 'f'))")


def test_text_keeps_the_order_of_dicts() -> None:
    assert repr(ValueMesh(Shape.unity(), [{"b": 1, "a": 2}])).endswith("(({}, {'b': 1, 'a': 2}),)")


def test_subscript_for_types_is_the_class_itself() -> None:
    assert ValueMesh[int] is ValueMesh


def test_no_new_attributes() -> None:
    with pytest.raises(AttributeError):
        letters().colour = "red"
