"""Extents, points, slices, shapes, regions and selections against numpy and the API's table."""

import copy
import pickle
from collections import OrderedDict
from collections.abc import Hashable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.shape.extent import Extent, NDSlice, Point, Region, Selection, Shape, Slice

fixed = settings(derandomize=True, deadline=None, max_examples=40)
sizes_of_grids = st.lists(st.integers(1, 4), max_size=4)

HG = Extent(["h", "g"], [2, 3])


def shape_of(sizes: list[int]) -> Shape:
    return Extent([f"x{i}" for i in range(len(sizes))], sizes).region.as_shape()


@st.composite
def cuts(draw: st.DrawFn, size: int) -> int | slice:
    if draw(st.booleans()):
        return draw(st.integers(0, size - 1))
    start = draw(st.integers(0, size - 1))
    stop = draw(st.integers(start + 1, size))
    return slice(draw(st.sampled_from([start, start or None])), stop, draw(st.integers(1, 3)))


@st.composite
def cut_grids(draw: st.DrawFn) -> tuple[Shape, np.ndarray]:
    """Cut a grid at random, twice, beside the numpy array cut the same way."""
    shape = shape_of(draw(sizes_of_grids))
    array = np.arange(len(shape)).reshape(shape.ndslice.sizes)
    for _ in range(2):
        wanted = [draw(cuts(size)) for size in array.shape]
        for label, cut in zip(shape.labels, wanted, strict=True):
            shape = shape.at(label, cut) if isinstance(cut, int) else shape.select(label, cut)
        array = array[tuple(wanted)]
    return shape, array


class TestExtent:
    def test_is_a_mapping_in_order_of_its_labels(self) -> None:
        assert isinstance(HG, Mapping)
        assert dict(HG) == {"h": 2, "g": 3}
        assert (list(HG), len(HG), "g" in HG, "x" in HG) == (["h", "g"], 2, True, False)
        assert (HG.labels, HG.sizes, HG.nelements) == (["h", "g"], [2, 3], 6)

    def test_unknown_label(self) -> None:
        with pytest.raises(KeyError, match="zz"):
            HG["zz"]
        assert HG.get("zz", 7) == 7

    def test_text(self) -> None:
        assert str(HG) == repr(HG) == "{h: 2, g: 3}"
        assert str(Extent([], [])) == "{}"

    def test_equal_by_labels_sizes_and_order(self) -> None:
        assert Extent(["a"], [2]) == Extent(("a",), (2,))
        for other in (Extent(["g", "h"], [3, 2]), Extent(["h", "g"], [3, 2])):
            assert other != HG
        assert HG != {"h": 2, "g": 3}
        assert len({HG, Extent.from_dict({"h": 2, "g": 3}), Extent(["a"], [1])}) == 2

    def test_labels_and_sizes_must_match(self) -> None:
        with pytest.raises(ValueError, match="1 labels for 2 sizes"):
            Extent(["a"], [2, 3])

    def test_lists_given_out_are_copies(self) -> None:
        HG.labels.append("x")
        HG.sizes.clear()
        assert dict(HG) == {"h": 2, "g": 3}

    def test_region_holds_every_rank(self) -> None:
        assert list(HG.region.slice()) == list(range(6))
        assert HG.region.as_shape().extent == HG

    def test_without_axes_there_is_one_place(self) -> None:
        assert Extent([], []).nelements == 1
        assert list(Extent([], []).region.slice()) == [0]


class TestPoint:
    @fixed
    @given(sizes_of_grids)
    def test_coordinates_are_those_of_numpy(self, sizes: list[int]) -> None:
        extent = shape_of(sizes).extent
        for rank in range(extent.nelements):
            assert (
                tuple(Point(rank, extent).values())
                == np.unravel_index(rank, sizes or [1])[: len(sizes)]
            )

    def test_is_a_mapping_in_order_of_its_labels(self) -> None:
        point = Point(5, HG)
        assert isinstance(point, Mapping)
        assert dict(**point) == {"h": 1, "g": 2}
        assert (list(point), len(point), "g" in point, "x" in point) == (["h", "g"], 2, True, False)
        assert (point.rank, point.extent, point.size("g")) == (5, HG, 3)
        assert (point.get("g"), point.get("x"), point.get("x", 9)) == (2, None, 9)

    @pytest.mark.parametrize("read", [lambda p: p["x"], lambda p: p.size("x")])
    def test_unknown_label(self, read) -> None:
        with pytest.raises(ValueError, match=r"^Dimension 'x' not found$"):
            read(Point(0, HG))
        with pytest.raises(ValueError, match="Dimension 'x' not found"):
            read(Point(0, Extent([], [])))

    @pytest.mark.parametrize("rank", [-1, 6])
    @pytest.mark.parametrize("read", [lambda p: p["h"], str, dict])
    def test_bad_rank_is_found_when_read(self, rank: int, read) -> None:
        point = Point(rank, HG)
        assert point.rank == rank
        with pytest.raises(ValueError, match=rf"rank {rank} is out of range for extent"):
            read(point)

    def test_text(self) -> None:
        assert str(Point(5, HG)) == repr(Point(5, HG)) == "{'h': 1/2, 'g': 2/3}"
        assert str(Point(0, Extent([], []))) == "{}"

    def test_equal_only_to_points(self) -> None:
        assert Point(5, HG) == Point(5, Extent(["h", "g"], [2, 3]))
        assert Point(5, HG) != Point(4, HG)
        assert Point(5, HG) != Point(5, Extent(["h", "x"], [2, 3]))
        assert Point(5, HG) != {"h": 1, "g": 2}
        assert Point(0, Extent(["a"], [1])) != Extent(["a"], [0])
        assert Point(5, HG) != OrderedDict(h=1, g=2)

    def test_unhashable(self) -> None:
        assert not isinstance(Point(5, HG), Hashable)
        with pytest.raises(TypeError, match="unhashable"):
            hash(Point(5, HG))

    def test_no_new_attributes(self) -> None:
        with pytest.raises(AttributeError):
            Point(0, HG).colour = "red"


class TestSlice:
    @fixed
    @given(cut_grids())
    def test_ranks_are_those_of_numpy(self, grid: tuple[Shape, np.ndarray]) -> None:
        shape, array = grid
        assert shape.ranks() == list(shape.ndslice) == array.ravel().tolist()
        assert shape.ndslice.sizes == list(array.shape)
        assert len(shape) == len(shape.ndslice) == array.size

    @fixed
    @given(cut_grids())
    def test_lookups_are_inverses(self, grid: tuple[Shape, np.ndarray]) -> None:
        ndslice = grid[0].ndslice
        for i, rank in enumerate(ndslice):
            assert (ndslice[i], ndslice.get(i), ndslice.index(rank)) == (rank, rank, i)  # noqa: PLR1736
            assert ndslice.nditem(ndslice.coordinates(rank)) == rank
        for absent in set(range(-2, 70)) - set(ndslice):
            with pytest.raises(ValueError, match="is not in Slice"):
                ndslice.coordinates(absent)

    def test_strides_in_any_order(self) -> None:
        columns = Slice(offset=2, sizes=[3, 2], strides=[1, 3])
        assert list(columns) == [2, 5, 3, 6, 4, 7]
        assert [columns.index(rank) for rank in columns] == list(range(6))

    def test_fields(self) -> None:
        ndslice = Slice(offset=1, sizes=(2, 2), strides=(4, 2))
        assert (ndslice.offset, ndslice.sizes, ndslice.strides) == (1, [2, 2], [4, 2])
        assert (ndslice.ndim, len(ndslice), ndslice[1:], NDSlice) == (2, 4, (3, 5, 7), Slice)

    def test_keyword_only(self) -> None:
        with pytest.raises(TypeError):
            Slice(0, [2], [1])

    def test_text(self) -> None:
        assert (
            repr(Slice.new_row_major([2, 3]))
            == "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"
        )

    def test_index_errors(self) -> None:
        ndslice = Slice.new_row_major([2, 3])
        with pytest.raises(IndexError, match="out of range"):
            ndslice[6]
        with pytest.raises(TypeError, match="negative"):
            ndslice[-1]
        for index in (6, -1):
            with pytest.raises(IndexError, match="out of range"):
                ndslice.get(index)
        for value in (6, -1):
            with pytest.raises(ValueError, match=f"rank {value} is not in"):
                ndslice.index(value)

    @pytest.mark.parametrize("coordinates", [[2, 0], [0, 3], [-1, 0], [0], [0, 0, 0]])
    def test_nditem_errors(self, coordinates: list[int]) -> None:
        with pytest.raises(IndexError, match="index out of range"):
            Slice.new_row_major([2, 3]).nditem(coordinates)

    @pytest.mark.parametrize(
        "offset, sizes, strides, message",
        [
            (0, [2, 3], [1], "must match"),
            (-1, [2], [1], "not negative"),
            (0, [2, 0], [1, 1], "positive"),
            (0, [2, 3], [2, 1], "overlap"),
            (0, [2], [0], "overlap"),
            (0, [2], [-1], "overlap"),
        ],
    )
    def test_what_is_no_slice(
        self, offset: int, sizes: list[int], strides: list[int], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            Slice(offset=offset, sizes=sizes, strides=strides)

    @fixed
    @given(st.lists(st.integers(0, 12), max_size=12))
    def test_from_list_covers_the_list(self, ranks: list[int]) -> None:
        assert [rank for part in Slice.from_list(ranks) for rank in part] == ranks

    def test_from_list_finds_runs(self) -> None:
        assert Slice.from_list([0, 1, 2, 8, 10]) == [
            Slice.new_row_major([3]),
            Slice(offset=8, sizes=[2], strides=[2]),
        ]


class TestShape:
    @fixed
    @given(cut_grids())
    def test_coordinates_name_the_place_of_a_rank(self, grid: tuple[Shape, np.ndarray]) -> None:
        shape, array = grid
        for place, rank in np.ndenumerate(array):
            assert shape.coordinates(int(rank)) == dict(zip(shape.labels, place, strict=True))
            assert shape.index(**shape.coordinates(int(rank))).ranks() == [rank]

    def test_at_drops_and_select_keeps(self) -> None:
        shape = HG.region.as_shape()
        assert str(shape.at("h", 1)) == "{g=3}"
        assert shape.at("h", 1).ranks() == [3, 4, 5]
        assert str(shape.select("g", slice(0, 3, 2))) == "{h=2,g=2}"
        assert shape.select("g", slice(0, 3, 2)).ranks() == [0, 2, 3, 5]
        assert shape.index(h=1, g=2).ranks() == [5]
        assert shape.index() == shape

    def test_fields(self) -> None:
        shape = HG.region.as_shape()
        assert (shape.labels, shape.extent, shape.region) == (["h", "g"], HG, HG.region)
        assert shape.ndslice == Slice.new_row_major([2, 3])

    def test_unity(self) -> None:
        assert (len(Shape.unity()), Shape.unity().ranks(), str(Shape.unity())) == (1, [0], "{}")

    def test_text(self) -> None:
        shape = HG.region.as_shape()
        assert str(shape) == "{h=2,g=3}"
        assert repr(shape) == f'Shape {{ labels: ["h", "g"], slice: {shape.ndslice!r} }}'

    def test_errors(self) -> None:
        shape = HG.region.as_shape()
        with pytest.raises(ValueError, match="Shape does not have dimension labeled 'zz'"):
            shape.at("zz", 0)
        with pytest.raises(ValueError, match="Shape does not have dimension labeled 'zz'"):
            shape.select("zz", slice(1))
        with pytest.raises(ValueError, match="out of bounds"):
            shape.at("h", 2)
        with pytest.raises(OverflowError, match="negative"):
            shape.at("h", -1)
        with pytest.raises(ValueError, match="rank 6 is not in"):
            shape.coordinates(6)

    @pytest.mark.parametrize(
        "wanted", [slice(4), slice(3, 4), slice(2, 2), slice(-1, None), slice(0, 3, 0)]
    )
    def test_ranges_do_not_clip(self, wanted: slice) -> None:
        with pytest.raises(ValueError, match="empty or out of bounds for size 3"):
            HG.region.as_shape().select("g", wanted)

    @pytest.mark.parametrize("labels", [["a"], ["a", "b", "c"], ["a", "a"]])
    def test_labels_must_fit(self, labels: list[str]) -> None:
        with pytest.raises(ValueError, match="need 2 different labels"):
            Shape(labels, Slice.new_row_major([2, 3]))


class TestRegion:
    def test_points_of_base_ranks(self) -> None:
        right = HG.region.as_shape().select("g", slice(1, 3)).region
        assert right.labels == ["h", "g"]
        assert right.slice() == right.as_shape().ndslice
        points = [right.point_of_base_rank(rank) for rank in (1, 2, 4, 5)]
        assert points == [Point(i, Extent(["h", "g"], [2, 2])) for i in range(4)]
        with pytest.raises(ValueError, match="rank 0 is not in"):
            right.point_of_base_rank(0)

    def test_made_from_labels_and_slice(self) -> None:
        assert Region(["h", "g"], Slice.new_row_major([2, 3])) == HG.region
        assert HG.region != HG.region.as_shape()
        assert repr(HG.region).startswith('Region { labels: ["h", "g"], slice: Slice {')
        with pytest.raises(ValueError, match="need 1 different labels"):
            Region([], Slice.new_row_major([2]))


class TestSelection:
    @pytest.mark.parametrize(
        "text, index",
        [
            ("*", np.s_[:]),
            ("*, 0:2", np.s_[:, 0:2]),
            ("1", np.s_[1:2]),
            ("*,*,::2", np.s_[:, :, ::2]),
            (" 1: , 2,1:4:2", np.s_[1:, 2:3, 1:4:2]),
        ],
    )
    def test_text_means_what_numpy_would(self, text: str, index: object) -> None:
        extent = Extent(["a", "b", "c"], [2, 3, 4])
        expected = np.arange(24).reshape(2, 3, 4)[index].ravel().tolist()
        assert Selection.from_string(text).ranks(extent) == expected

    def test_all_and_any(self) -> None:
        assert Selection.all().ranks(HG) == list(range(6))
        drawn = {tuple(Selection.any().ranks(HG)) for _ in range(200)}
        assert drawn <= {(rank,) for rank in range(6)}
        assert len(drawn) > 1
        assert Selection.any().ranks(Extent([], [])) == [0]
        (first, second) = Selection.from_string("*, ?").ranks(HG)
        assert (first // 3, second // 3) == (0, 1)

    @pytest.mark.parametrize("text", ["", "x", "1,,2", "-1", "1:2:3:4", "**"])
    def test_unreadable(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"cannot read '.*' in selection"):
            Selection.from_string(text)

    def test_errors_when_evaluated(self) -> None:
        with pytest.raises(ValueError, match=r"more pieces than {h: 2, g: 3} has axes"):
            Selection.from_string("*,*,*").ranks(HG)
        for text in ("2", "0:3", "1:1", "::0"):
            with pytest.raises(ValueError, match="out of bounds"):
                Selection.from_string(text).ranks(HG)

    def test_text(self) -> None:
        assert repr(Selection.from_string("*,0:2")) == "Selection('*, 0:2')"
        assert repr(Selection.any()) == "Selection('?')"
        assert Selection.from_string("1,*") == Selection.from_string("1 , *")


VALUES = [
    HG,
    HG.region,
    HG.region.as_shape(),
    Shape.unity(),
    HG.region.as_shape().at("h", 1).ndslice,
    Selection.from_string("*, 0:2"),
]


@pytest.mark.parametrize("value", [*VALUES, Point(5, HG)], ids=repr)
def test_copies_are_equal(value: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(value, protocol))
        assert (again, type(again), repr(again)) == (value, type(value), repr(value))
    assert copy.deepcopy(value) == copy.copy(value) == value


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_hash_by_content(value: object) -> None:
    assert len({value, copy.deepcopy(value)}) == 1
    assert value != "something else"
