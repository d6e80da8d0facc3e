"""What is taken as memory, and what is refused with what to type instead."""

import sys
import types

import numpy as np
import pytest
import torch

from monarch_nb.data.memory import memory_of


@pytest.mark.parametrize(
    "data, size",
    [
        (torch.zeros(3), 12),
        (torch.zeros(8, dtype=torch.bfloat16)[2:5], 6),
        (torch.zeros(3, dtype=torch.bool), 3),
        (torch.zeros(2, requires_grad=True), 8),
        (torch.nn.Parameter(torch.zeros(2)), 8),
        (torch.zeros(2, dtype=torch.complex64), 16),
        (memoryview(bytearray(5)), 5),
        (memoryview(np.zeros(3)), 24),
        (memoryview(b"abc"), 3),
    ],
)
def test_one_run_of_bytes(data, size):
    memory = memory_of(data)
    assert memory.size == len(memory.view) == size
    if isinstance(data, torch.Tensor):
        assert memory.address == data.data_ptr()
    assert memory.writable is not (isinstance(data, memoryview) and data.readonly)


def test_the_bytes_are_the_users():
    tensor = torch.zeros(4, dtype=torch.int16)
    memory_of(tensor).view[2] = 5
    assert tensor.tolist() == [0, 5, 0, 0]


@pytest.mark.parametrize(
    "data, said",
    [
        (torch.zeros(2, 2), "2 dimensions.*t.view(torch.uint8).flatten()"),
        (torch.zeros(4)[::2], "not contiguous.*t.contiguous()"),
        (torch.zeros(4, 4).T, "not contiguous"),
        (torch.tensor(1.0), "0 dimensions"),
        (torch.zeros(4).to_sparse(), "not contiguous"),
        (torch.zeros(4, device="meta"), "no memory here"),
        (memoryview(bytearray(8))[::2], "not contiguous"),
        (memoryview(np.zeros((2, 2))), r'2 dimensions.*view.cast("B")'),
        (np.zeros(3), "memoryview(array)"),
        ([1, 2], "a torch.Tensor or a memoryview, not list"),
        (b"abc", "not bytes"),
    ],
)
def test_what_is_not_says_what_to_type(data, said):
    import re

    pattern = ".*".join(map(re.escape, said.split(".*")))
    with pytest.raises(ValueError, match=pattern):
        memory_of(data)


@pytest.mark.parametrize("data", [torch.zeros(0), memoryview(b"")])
def test_nothing_is_of_size_zero(data):
    assert memory_of(data).size == 0


def test_memory_that_was_given_out_stays_where_it_is():
    tensor = torch.zeros(4)
    memory_of(tensor)
    with pytest.raises(RuntimeError, match="resiz"):
        tensor.untyped_storage().resize_(0)


def test_what_is_refused_is_so_while_another_thread_loads_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # nothing in it yet
    with pytest.raises(ValueError, match=r"type memoryview\(array\)"):
        memory_of(np.zeros(3))
