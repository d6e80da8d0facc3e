"""Large variables: shared by the ranks of a host, not copied on the way, given back."""

import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from monarch_nb import EncodeError
from tests import inside
from tests.meshes.test_variables import ok
from tests.support import eventually

pytestmark = pytest.mark.usefixtures("mesh_runtime")

LARGE = 64 << 20


def test_arrays_are_shared_by_the_ranks_and_not_copied(procs):
    """Ranks map the same file: what the controller has written once."""
    array = np.arange(LARGE // 8, dtype=np.float64)
    procs["array"] = array
    where = ok(
        procs,
        "import re\n"
        "at = array.__array_interface__['data'][0]\n"
        "def inode():\n"
        "    for line in open('/proc/self/maps'):\n"
        "        low, high = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "        if low <= at < high: return line.split()[4]\n"
        "inode()",
    )
    assert len(set(where)) == 1
    assert where[0] != "'0'", "anonymous memory: it was copied"
    back = procs.slice(gpus=1)["array"].item()
    assert back.sum() == array.sum()
    assert _is_mapped(back.__array_interface__["data"][0])
    ok(procs, "array[0] = rank + 1; del array")


def _is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(each, 16) for each in line.split()[0].split("-"))
            if low <= address < high:
                return line.split()[4] != "0"
    return False


def test_a_scatter_that_fails_half_way_lends_nothing(procs):
    large = np.zeros(LARGE // 8)
    procs["large"] = large
    ok(procs, "del large")
    eventually(lambda: not inside.leased_bytes(), what="the memory is free")
    with pytest.raises(EncodeError):
        procs.scatter("large", [large, large, large, threading.Lock()])
    assert not inside.leased_bytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array,
        torch.from_numpy,
        lambda array: pa.table({"x": array}),
        lambda array: pl.DataFrame({"x": array}),
        lambda array: pd.DataFrame({"x": array}),
    ],
    ids=["numpy", "torch", "pyarrow", "polars", "pandas"],
)
def test_large_values_arrive_equal_and_are_not_copied_on_the_way(procs, make):
    """No rank has so much more memory of its own than before."""
    value = make(np.arange(LARGE // 8, dtype=np.float64))
    own = "(float(open('/proc/self/smaps_rollup').read().split('Anonymous:')[1].split()[0]) / 1024)"
    before = [float(text) for text in ok(procs, own)]
    procs["large"] = value
    grown = [float(text) - was for text, was in zip(ok(procs, own), before, strict=True)]
    assert max(grown) < 32, f"{grown} MB"
    column = "large['x'] if hasattr(large, 'columns') else large"
    total = f"import numpy as np; float(np.asarray({column}).sum())"
    assert ok(procs, total)[3] == str(float(np.arange(LARGE // 8, dtype=np.float64).sum()))
    back = procs.slice(gpus=1)["large"].item()
    assert type(back) is type(value)
    procs.scatter("large", value)
    parts = procs["large"].values()
    assert sum(len(part) for part in parts) == LARGE // 8
    ok(procs, "del large")


def test_values_that_nobody_looks_at_are_given_back(procs):
    ok(procs, "import numpy as np; large = np.zeros(1 << 20)")
    leased = (
        "from monarch_nb.process import current\n"
        "current.running().proc.payloads._arena.statistics()['leased_bytes']"
    )
    found = procs["large"]
    assert found[1][0] == 0
    assert "0" not in ok(procs, leased)
    del found
    eventually(lambda: ok(procs, leased) == ["0"] * 4, what="the ranks have their memory back")
