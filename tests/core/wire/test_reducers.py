"""Tensors and tables are pickled with their memory out of band, and come back equal."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from polars.testing import assert_frame_equal, assert_series_equal

from monarch_nb.core.wire import pickling, reducers
from tests.source import ROOT


@pytest.fixture(scope="module", autouse=True)
def polars_keeps_descriptors() -> None:
    """It opens some at its first use, for the life of the process."""
    pl.DataFrame({"x": [1]}).write_ipc_stream(None)
    pl.DataFrame({"x": [1]}).lazy().filter(pl.col("x") > 1).collect()


def there_and_back(value, *, small=1000):
    """The value as it arrives, and how many bytes travelled out of band."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickling.dumps(value, buffers)
    assert len(payload) < small, f"{len(payload)} bytes in the pickle"
    raws = [bytearray(each.raw()) for each in buffers]
    return pickling.loads(payload, raws), sum(map(len, raws))


# ----------------------------------------------------------------------------------- tensors

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_type(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    back, size = there_and_back(tensor)
    assert type(back) is torch.Tensor
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))
    assert size == tensor.nbytes
    back.view(torch.uint8)[0] = 1  # it is writable


@pytest.mark.parametrize(
    "take",
    [
        lambda t: t.T,
        lambda t: t[2:5],
        lambda t: t[:, 3],
        lambda t: t[:, :30],
        lambda t: t[0, 0],
        lambda t: t[:1].expand(50, -1),
        lambda t: t.reshape(10, 2, 5, 40).to(memory_format=torch.channels_last),
        lambda t: t[::3, 1:-1],
    ],
)
def test_views_take_only_their_own_memory_along(take):
    view = take(torch.arange(4000.0).reshape(40, 100))
    back, size = there_and_back(view)
    assert torch.equal(back, view)
    assert size <= 1.25 * view.nbytes


def test_the_order_in_memory_is_kept():
    assert there_and_back(torch.zeros(3, 5).T)[0].stride() == (1, 5)
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert there_and_back(images)[0].is_contiguous(memory_format=torch.channels_last)


def test_gradients_and_parameters():
    leaf = torch.ones(3, requires_grad=True)
    back, _ = there_and_back(leaf)
    assert back.requires_grad
    assert back.is_leaf
    assert there_and_back(leaf * 2)[0].requires_grad
    linear = torch.nn.Linear(2, 2)
    copy, _ = there_and_back(linear, small=3000)
    assert type(copy.weight) is torch.nn.Parameter
    assert torch.equal(copy.weight, linear.weight)
    copy(torch.ones(1, 2)).sum().backward()
    assert copy.weight.grad is not None


def test_what_was_on_a_gpu_is_in_main_memory_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    build, (buffer, *how, _) = reducers.reduce_tensor(torch.arange(6.0).reshape(2, 3).T)
    arrived = build(buffer, *how, 1)
    assert arrived.device.type == "cpu"
    assert torch.equal(arrived, torch.arange(6.0).reshape(2, 3).T)


def test_one_tensor_that_is_twice_in_a_value_is_one():
    tensor = torch.zeros(5)
    (one, two), size = there_and_back((tensor, tensor))
    assert one is two
    assert size == 20


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor([1 + 2j]).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(2, device="meta"),
    ],
    ids=["empty", "conj", "sparse", "meta"],
)
def test_other_tensors_go_their_own_way(tensor):
    back, _ = there_and_back(tensor, small=5000)
    assert (back.shape, back.dtype, back.layout, back.device) == (
        tensor.shape, tensor.dtype, tensor.layout, tensor.device
    )  # fmt: skip
    assert back.is_conj() == tensor.is_conj()


def test_attributes_of_a_tensor_are_kept():
    tensor = torch.ones(2)
    tensor.mine = "kept"
    assert there_and_back(tensor, small=5000)[0].mine == "kept"


def test_a_buffer_that_may_not_be_written_to_is_copied():
    buffers: list[pickle.PickleBuffer] = []
    payload = pickling.dumps(torch.ones(4), buffers)
    odd = memoryview(b"x" + bytes(buffers[0].raw()))[1:]
    back = pickling.loads(payload, [odd])
    back[0] = 2
    assert back.tolist() == [2, 1, 1, 1]


# ------------------------------------------------------------------------------------ tables


@pytest.fixture
def table():
    rows = 10_000
    return pa.table(
        {
            "number": np.arange(rows, dtype=np.float64),
            "text": [f"the text of row {i}" for i in range(rows)],
            "some": pa.array([None if i % 3 else i for i in range(rows)]),
            "lists": [[i] * (i % 4) for i in range(rows)],
        }
    )


def test_arrow_tables_share_their_memory(table):
    back, size = there_and_back(table)
    assert back.equals(table)
    assert size == pytest.approx(table.nbytes, rel=0.01)


@pytest.mark.parametrize("start", [0, 5001])
def test_a_part_of_a_table_leaves_the_rest_behind(table, start):
    part = table.slice(start, 1000)
    back, size = there_and_back(part)
    assert back.equals(part)
    assert size < 0.15 * table.nbytes
    batch = table.to_batches()[0].slice(start, 1000)
    back, size = there_and_back(batch)
    assert type(back) is pa.RecordBatch
    assert back.equals(batch)
    assert size < 0.15 * table.nbytes
    assert there_and_back(table.slice(start, 0))[0].num_rows == 0


@pytest.fixture(params=[True, False], ids=["pyarrow", "without pyarrow"])
def way(request, monkeypatch):
    monkeypatch.setattr(reducers, "_has_pyarrow", lambda: request.param)


def test_polars_frames(way, table):
    frame = pl.from_arrow(table)
    back, size = there_and_back(frame)
    assert_frame_equal(back, frame)
    assert size < 2 * frame.estimated_size()
    part = frame.slice(5000, 100)
    back, size = there_and_back(part)
    assert_frame_equal(back, part)
    assert size < 0.05 * frame.estimated_size()


def test_polars_columns_of_every_kind(way):
    frame = pl.DataFrame(
        {
            "enum": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])),
            "category": pl.Series(["a", None], dtype=pl.Categorical),
            "decimal": pl.Series(["1.5", "2.5"]).cast(pl.Decimal(10, 2)),
            "struct": [{"x": 1, "y": "s"}, {"x": 2, "y": None}],
            "nested": [[[1], [2, 3]], []],
            "null": [None, None],
            "wide": pl.Series([1, 2**100], dtype=pl.Int128),
        }
    ).with_columns(
        time=pl.lit(0).cast(pl.Time),
        when=pl.lit(0).cast(pl.Datetime("ms", "UTC")),
        array=pl.lit([1, 2]).cast(pl.Array(pl.Int8, 2)),
    )
    back, _ = there_and_back(frame, small=100_000)
    assert back.schema == frame.schema
    assert_frame_equal(back, frame)


def test_polars_series_and_odd_frames(way):
    series = pl.Series("a name", [1.5, None, 2])
    assert_series_equal(there_and_back(series)[0], series)
    for frame in (pl.DataFrame(), pl.DataFrame({"x": []}), pl.DataFrame({"x": ["s"]}).clear()):
        back, _ = there_and_back(frame, small=5000)
        assert_frame_equal(back, frame)
    plan = pl.DataFrame({"x": [1, 2]}).lazy().filter(pl.col("x") > 1)
    assert there_and_back(plan, small=5000)[0].collect()["x"].to_list() == [2]


def test_pandas_frames(table):
    frame = pd.DataFrame({"number": np.arange(1000.0), "text": [f"row {i}" for i in range(1000)]})
    back, _ = there_and_back(frame, small=3000)
    pd.testing.assert_frame_equal(back, frame)


# ------------------------------------------------------------------------------- nobody pays


def printed_by(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=-1, text=True, check=True)
    return run.stdout


def test_nothing_is_imported_for_it():
    code = (
        "import sys; from monarch_nb.core.wire import pickling; pickling.dumps([object], []);"
        "print({'torch', 'pyarrow', 'polars', 'numpy'} & set(sys.modules))"
    )
    assert printed_by(code) == "set()\n"


def test_a_library_that_is_loaded_later_is_known_then():
    code = (
        "import pickle; from monarch_nb.core.wire import pickling; pickling.dumps([object], [])\n"
        "import torch; found = []; pickling.dumps(torch.zeros(1000), found); print(len(found))"
    )
    assert printed_by(code) == "1\n"
