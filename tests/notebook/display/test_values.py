"""A `ValueMesh` as a reader sees it, in text and in HTML."""

import dataclasses
import itertools
import math
import re
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from monarch_nb.core.shape.extent import Extent
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.notebook.display.values import MAX_ROWS, values_html, values_text
from tests.core.shape.test_values import lazy
from tests.support import eventually

FIRST_CELLS = ["%mesh up --gpus 2"]


def values(*found: Any, **sizes: int) -> ValueMesh[Any]:
    sizes = sizes or {"gpus": len(found)}
    return ValueMesh(Extent(list(sizes), list(sizes.values())).region.as_shape(), found)


def test_numbers_are_a_grid_along_the_axes():
    shown = values(0.5, 1, 2.25, 3, 4, 12.5, hosts=2, gpus=3)
    assert values_text(shown) == (
        "ValueMesh hosts=2 gpus=3: 0.5 to 12.5, mean 3.875\n"
        "gpus=       0     1     2\n"
        "hosts=0   0.5     1  2.25\n"
        "hosts=1     3     4  12.5"
    )


def test_the_colour_says_how_large_a_number_is():
    page = values_html(values(0, 5, 10))
    assert re.findall(r"rgba\(47,143,214,([\d.]+)\)'>(\d+)<", page) == [
        ("0.00", "0"),
        ("0.30", "5"),
        ("0.60", "10"),
    ]


def test_what_is_not_finite_is_marked_and_counted():
    shown = values(1.0, math.nan, math.inf, 3.0)
    assert values_text(shown).startswith("ValueMesh gpus=4: 1 to 3, mean 2; 2 not finite\n")
    assert values_html(shown).count("✕") == 2
    assert "2 not finite" in values_text(values(math.nan, -math.inf))


@pytest.mark.parametrize("one", [np.float32(1.5), torch.tensor(1.5), np.array(1.5), 1.5])
def test_numbers_of_numpy_and_torch_are_numbers(one):
    assert "1.5 to 1.5" in values_text(values(one, one))


def test_huge_numbers_do_no_harm():
    assert "e+300" in values_text(values(1e300, -1e300, 1.7e308, -1.7e308))
    assert "100000" in values_text(values(10**400, 1))


def test_records_have_a_column_for_each_field():
    class Pair(NamedTuple):
        loss: float
        step: int

    @dataclasses.dataclass
    class Data:
        loss: float
        step: int

    third = values_text(values({"x": 1 / 3}, {"x": 1e-9}))
    assert third.endswith("\n0     0.333333\n1     1e-09")
    for make in (Pair, Data, lambda loss, step: {"loss": loss, "step": step}):
        shown = values(make(0.5, 1), make(0.25, 2))
        assert values_text(shown) == (
            "ValueMesh gpus=2\ngpus  loss  step\n0     0.5   1\n1     0.25  2"
        )
        assert values_html(shown).count("<th ") == 3


def test_different_records_are_shown_whole():
    assert "{'a': 1}" in values_text(values({"a": 1}, {"b": 2}))


def test_arrays_are_told_by_shape_and_range():
    shown = values(torch.arange(6.0).reshape(2, 3), np.full((10, 10), 2), torch.empty(0))
    assert values_text(shown).splitlines()[2:] == [
        "0     float32 (2, 3), 0 to 5, mean 2.5",
        "1     int64 (10, 10), 2 to 2, mean 2",
        "2     float32 (0,)",
    ]
    assert "float32 (3, 4)" in values_text(values(torch.empty(3, 4, device="meta")))
    assert "bool (2,)" in values_text(values(torch.tensor([True, False])))


def test_equal_values_of_many_ranks_are_one_row():
    text = values_text(values(*["same"] * 99, "other", hosts=10, gpus=10))
    assert text.splitlines()[1:] == ["ranks  value", "0-98   'same'", "99     'other'"]


def test_what_ranks_say_is_escaped_and_bounded():
    page = values_html(values(*[f"<b>{number}" + "x" * 5000 for number in range(100)]))
    assert "<b>0" not in page
    assert page.count("<tr>") == MAX_ROWS + 1
    assert "... 36 more rows" in page
    assert "x" * 300 not in page
    assert "<i" not in values_html(values({"<i>": "<i>"}, {"<i>": "<i>"}))


def test_thousands_of_ranks_take_no_time():
    many = values(*range(20_000), hosts=2500, gpus=8)
    started = time.perf_counter()
    page, text = values_html(many), values_text(many)
    assert time.perf_counter() - started < 1
    assert len(page) < 200_000
    assert "... 18976 more" in text
    assert "... 18976 more" in page


def test_a_long_axis_is_wrapped():
    text = values_text(values(*range(40)))
    assert text.splitlines()[1].startswith("gpus=0-15 ")
    assert text.splitlines()[3].split() == ["gpus=32-39", *map(str, range(32, 40))]


def test_a_value_that_fails_does_not_spoil_the_others():
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    def unreadable() -> Any:
        raise ImportError("no module named <x>")

    shape = Extent(["g"], [3]).region.as_shape()
    page = values_html(lazy(shape, [Bad, unreadable, lambda: 7]))
    assert "7" in page
    assert "Bad, whose repr raised RuntimeError" in page
    assert "cannot be read: ImportError: no module named &lt;x&gt;" in page


def test_a_single_value_and_none():
    assert values_text(ValueMesh(Extent([], []).region.as_shape(), [3])) == (
        "ValueMesh: 3 to 3, mean 3\n3"
    )
    assert values_text(values(None, None)).splitlines()[-1] == "1     None"


# ------------------------------------------------------------------------------------ in a kernel


def test_text_comes_first_and_meshes_show_their_ranks(kernel):
    kernel.ok(
        "from monarch_nb import Actor, current_rank, endpoint\n"
        "class Counter(Actor):\n"
        "    @endpoint\n"
        "    def loss(self): return current_rank().rank / 2\n"
        "counters = mesh0.spawn('counters', Counter)"
    )
    [data] = kernel.ok("counters.loss.call().get()").displays
    assert next(iter(data)) == "text/plain"
    assert (
        data["text/plain"]
        == "ValueMesh gpus=2: 0 to 0.5, mean 0.25\ngpus=    0    1\n         0  0.5"
    )
    assert "rgba(" in data["text/html"]
    pictures = (kernel.ok("mesh0").displays[0] for _ in itertools.count())
    # a rank says that it is idle just after its answer
    eventually(lambda: "2 ranks (gpus=2): 2 idle" in next(pictures)["text/html"])
    data = next(pictures)
    assert data["text/plain"].startswith("<ProcMesh") or "mesh0" in data["text/plain"]
