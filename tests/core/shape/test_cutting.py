"""A value cut into nearly equal parts, and values of ranks as one array."""

import sys
import types

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.data.stacking import cut, stack


@given(st.lists(st.integers(), max_size=50), st.integers(1, 9))
def test_parts_together_are_the_whole_and_nearly_equal(items, count):
    parts = cut(items, count)
    assert [item for part in parts for item in part] == items
    sizes = [len(part) for part in parts]
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "value, rows",
    [
        (range(7), list),
        ((1, 2, 3, 4, 5, 6, 7), list),
        (np.arange(7), np.ndarray.tolist),
        (torch.arange(7), torch.Tensor.tolist),
        (pd.DataFrame({"x": range(7)}), lambda part: part["x"].tolist()),
        (pd.Series(range(7)), lambda part: part.tolist()),
        (pa.table({"x": range(7)}), lambda part: part["x"].to_pylist()),
        (pa.array(range(7)), lambda part: part.to_pylist()),
        (pl.DataFrame({"x": range(7)}), lambda part: part["x"].to_list()),
        (pl.Series(range(7)), pl.Series.to_list),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_rows(value, rows):
    parts = cut(value, 3)
    assert {type(part) for part in parts} == {type(value)}
    assert [len(rows(part)) for part in parts] == [3, 2, 2]


@pytest.mark.parametrize("value", [np.arange(12).reshape(2, 6), torch.arange(12).reshape(2, 6)])
def test_another_axis(value):
    for dim in (1, -1):
        parts = cut(value, 4, dim)
        assert [tuple(part.shape) for part in parts] == [(2, 2), (2, 2), (2, 1), (2, 1)]
        assert parts[2].tolist() == [[4], [10]]
    assert cut(pd.DataFrame({"a": [1], "b": [2]}), 2, 1)[1].columns.tolist() == ["b"]


def test_parts_along_another_axis_can_be_handed_over_as_they_are():
    assert all(part.flags.c_contiguous for part in cut(np.zeros((4, 4)), 2, 1))
    assert all(part.is_contiguous() for part in cut(torch.zeros(4, 4), 2, 1))


@pytest.mark.parametrize("value", [3, {"a": 1}, {1, 2}, None, iter([1])])
def test_what_has_no_order_is_refused(value):
    with pytest.raises(TypeError, match="cannot be cut into parts"):
        cut(value, 2)


@pytest.mark.parametrize("value", [torch.tensor(3), pa.table({"x": [1]})])
def test_an_axis_that_is_not_there(value):
    with pytest.raises(ValueError, match="cannot cut along dim=1"):
        cut(value, 2, 1)


def test_numbers_are_stacked_while_another_thread_loads_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # nothing in it yet
    assert stack("loss", {0: 1.5, 1: 2.5}, (2,)).tolist() == [1.5, 2.5]
