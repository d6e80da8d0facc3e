"""What is shown of a tensor: some of its numbers, or dots; and nothing of it beside that."""

import base64
import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from monarch_nb.core.wire.messages.codec import Refused, encode_answer
from monarch_nb.core.wire.messages.status import GetPicture, GetWindow, Picture, Window
from monarch_nb.worker.status import tensor_views
from monarch_nb.worker.status.contents import of_tensors
from monarch_nb.worker.status.tensor_views import TensorViews, texts
from tests.worker.status.test_described import RAN, Curious, Traced

BOTH = pytest.mark.parametrize("of", [torch.tensor, np.array], ids=["torch", "numpy"])


def window(value: object, *indices: int, row: int = 0, column: int = 0) -> Window:
    found = TensorViews(lambda: {"x": value}).window(GetWindow("x", list(indices), row, column))
    assert isinstance(found, Window), found
    return found


def picture(value: object, *indices: int) -> tuple[Picture, list[list[int]]]:
    """And its dots, row by row."""
    found = TensorViews(lambda: {"x": value}).picture(GetPicture("x", list(indices)))
    assert isinstance(found, Picture), found
    dots = base64.b64decode(found.dots)
    starts = range(0, len(dots), found.columns)
    return found, [[*dots[start : start + found.columns]] for start in starts]


@BOTH
def test_a_window_is_the_last_two_dims_at_the_indices_of_the_others(of):
    cube = of([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    found = window(cube, 1)
    assert (found.numbers, found.indices) == ([["5", "6"], ["7", "8"]], [1])
    assert (found.tensor.shape, found.tensor.dtype) == ([2, 2, 2], "int64")
    assert window(cube).indices == [0], "the first, where nothing is chosen"
    assert window(cube, 9, 9).indices == [1], "the last, where that is beyond"
    assert window(cube, row=1, column=1).numbers == [["4"]]
    assert window(cube, row=9).row == 1


@BOTH
def test_one_dim_is_a_row_and_none_a_number(of):
    assert window(of([1, 2, 3]), column=1).numbers == [["2", "3"]]
    assert window(of(2.5)).numbers == [["2.5000"]]
    assert window(of([True, False])).numbers == [["True", "False"]]
    assert window(of([[], []])).numbers == [[], []]
    assert window(np.zeros((0, 3, 2))).numbers == window(torch.zeros(0, 3, 2)).numbers == []


def test_of_a_large_tensor_a_window_is_no_larger():
    found = window(torch.tensor(0.125).expand(100_000, 10_000), row=500, column=70)
    assert [len(found.numbers), len(found.numbers[0])] == [200, 50]
    assert len(encode_answer(found)) < 110_000
    shown, _ = picture(torch.zeros(3000, 2000))
    assert len(encode_answer(shown)) < 90_000


@pytest.mark.parametrize(
    "numbers, written",
    [
        ([1.0, 0.0, -3.0], ["1", "0", "-3"]),
        ([0.5, 2.0, 0.0], ["0.5000", "2.0000", "0"]),
        ([0.5, 3e-7, math.nan, -math.inf], ["0.5000", "3.0e-07", "nan", "-inf"]),
        ([2.5e7, 1.5], ["2.500e+07", "1.500e+00"]),
        ([1e-8, -2e-9], ["1.000e-08", "-2.000e-09"]),
        ([1 << 62, -1], ["4611686018427387904", "-1"]),
        ([math.nan], ["nan"]),
    ],
)
def test_numbers_of_a_window_are_written_in_one_way(numbers, written):
    assert texts([numbers]) == [written]


@pytest.mark.parametrize(
    "value, why",
    [
        ([1, 2], "x is a list; only tensors and arrays of PyTorch's and NumPy's own types"),
        (torch.ones(2, dtype=torch.complex64), "x is a torch.Tensor of complex64 on cpu; only"),
        (torch.ones(2, device="meta"), "x is a torch.Tensor of float32 on meta; only dense"),
        (torch.eye(2).to_sparse(), "x is a torch.Tensor of float32 on cpu; only dense tensors"),
        (np.array(["a"]), "x is an array of <U1; only real numbers are shown"),
        (np.array([Curious()], dtype=object), "x is an array of object; "),
        (Curious(), "x is a .*Curious; only tensors and arrays"),
        (torch.zeros(3).as_subclass(Traced), "x is a .*Traced; only tensors and arrays"),
    ],
)
@pytest.mark.parametrize("asked", [GetWindow("x", []), GetPicture("x", [])])
def test_what_cannot_be_shown_is_refused_and_not_run(value, why, asked):
    views = TensorViews(lambda: {"x": value})
    RAN.clear()
    found = views.window(asked) if isinstance(asked, GetWindow) else views.picture(asked)
    assert RAN == []
    assert isinstance(found, Refused)
    assert re.match(why, found.error), found.error
    assert "\n" not in found.error


def test_a_name_that_is_not_there_is_refused():
    found = TensorViews(dict).window(GetWindow("y", []))
    assert found == Refused("this rank has no variable 'y'")


@BOTH
def test_a_small_picture_has_a_dot_for_each_number(of):
    found, dots = picture(of([[0.0, 1.0], [0.5, math.nan], [math.inf, -math.inf]]))
    assert dots == [[0, 254], [127, 255], [254, 0]]
    assert (found.rows, found.columns, found.each) == (3, 2, [1, 1])
    assert (found.least, found.greatest) == (0.0, 1.0), "of what is finite"
    assert picture(of([[7, 7]]))[1] == [[0, 0]]
    none, dots = picture(of([math.nan, math.nan]))
    assert (none.least, none.greatest, dots) == (None, None, [[255, 255]])


@BOTH
@pytest.mark.parametrize("piece", [4 << 20, 64, 7], ids=str)
def test_a_dot_of_a_large_picture_is_a_mean(of, piece, monkeypatch):
    monkeypatch.setattr(tensor_views, "MAX_DOTS", 4)
    monkeypatch.setattr(tensor_views, "PIECE", piece)
    numbers = np.arange(10 * 7, dtype=np.float32).reshape(10, 7)  # blocks of 3 by 2, and less
    numbers[9, 6] = math.nan
    found, dots = picture(of(numbers))
    assert (found.rows, found.columns, found.each) == (4, 4, [3, 2])
    means = [
        [numbers[row : row + 3, column : column + 2].mean() for column in range(0, 7, 2)]
        for row in range(0, 10, 3)
    ]
    known = [each for row in means for each in row if not math.isnan(each)]
    assert (found.least, found.greatest) == (min(known), max(known))
    span = found.greatest - found.least
    for row, expected in zip(dots, means, strict=True):
        for dot, mean in zip(row, expected, strict=True):
            level = 255 if math.isnan(mean) else (mean - found.least) / span * 254
            assert dot == pytest.approx(level, abs=0.51)


def test_what_takes_too_long_or_is_empty_has_no_picture(monkeypatch):
    views = TensorViews(lambda: {"x": torch.ones(3, 2), "none": torch.ones(0, 3)})
    assert views.picture(GetPicture("none", [])) == Refused("none is empty: [0, 3]")
    monkeypatch.setattr(tensor_views, "LIMIT_S", -1.0)
    assert "6 numbers there, which are not gone" in views.picture(GetPicture("x", [])).error


def test_halves_parameters_and_views_are_shown():
    half = torch.nn.Parameter(torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16))
    found = window(half)
    assert (found.numbers, found.tensor.dtype) == ([["1.5000", "2.0000"]], "bfloat16")
    assert picture(half)[1] == [[0, 254]]
    assert window(torch.arange(6).reshape(2, 3).t()).numbers == [["0", "3"], ["1", "4"], ["2", "5"]]


@pytest.fixture
def spread() -> Iterator[DTensor]:
    """A tensor of 8 rows of which this rank, one of four, has two."""
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = torch.distributed.init_device_mesh("cpu", (4,))
    yield distribute_tensor(torch.arange(16.0).reshape(8, 2), mesh, [Shard(0)])
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_of_a_tensor_that_is_spread_over_ranks_the_part_here_is_shown(spread):
    found = window(spread)
    assert (found.tensor.shape, found.tensor.whole) == ([2, 2], [8, 2])
    assert found.numbers == [["0", "1"], ["2", "3"]]
    assert picture(spread)[0].rows == 2
    assert of_tensors(torch, [spread]) == "part here: 0 to 3, mean 1.5"
