"""Tensors and arrays are gone through in pieces, and only where that is safe."""

import numpy as np
import pytest
import torch

from monarch_nb.worker.status import contents
from monarch_nb.worker.status.contents import of_arrays, of_tensors


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.tensor([[1.0, -3.0], [2.0, 4.0]]), "-3 to 4, mean 1"),
        (torch.tensor(2.5, dtype=torch.bfloat16), "2.5 to 2.5, mean 2.5"),
        (torch.tensor([1, 2, 6]), "1 to 6, mean 3"),
        (torch.tensor([True, False]), "0 to 1, mean 0.5"),
        (
            torch.tensor([1, torch.nan, torch.inf, -torch.inf]),
            "1 to 1, mean 1, 1 NaN, 2 infinite",
        ),
        (torch.tensor([torch.nan]), "1 NaN"),
        (torch.ones(0, 3), "empty"),
        (torch.nn.Parameter(torch.ones(2, 2)), "1 to 1, mean 1"),
        (torch.ones(2, dtype=torch.complex64), None),
        (torch.ones(2, device="meta"), None),
        (torch.eye(2).to_sparse(), None),
    ],
)
def test_what_is_in_a_tensor(tensor, text):
    assert of_tensors(torch, [tensor]) == text


def test_several_are_told_together():
    assert of_tensors(torch, [torch.ones(3), torch.zeros(1)]) == "0 to 1, mean 0.75"


def test_tensors_that_are_no_plain_ones_are_not_asked():
    class Curious(torch.Tensor):
        pass

    assert of_tensors(torch, [torch.ones(2).as_subclass(Curious)]) is None


@pytest.mark.parametrize(
    "array, text",
    [
        (np.arange(12).reshape(3, 4), "0 to 11, mean 5.5"),
        (np.array(3.0), "3 to 3, mean 3"),
        (np.array([np.nan, 1]), "1 to 1, mean 1, 1 NaN"),
        (np.array(["a"]), None),
        (np.array([1j]), None),
    ],
)
def test_what_is_in_an_array(array, text):
    assert of_arrays(np, [array]) == text


def test_a_large_one_is_gone_through_in_pieces(monkeypatch):
    monkeypatch.setattr(contents, "PIECE", 6)
    assert of_tensors(torch, [torch.arange(100).reshape(50, 2).t()]) == "0 to 99, mean 49.5"
    assert of_tensors(torch, [torch.arange(100).reshape(50, 2)]) == "0 to 99, mean 49.5"


def test_one_that_takes_too_long_is_left(monkeypatch):
    monkeypatch.setattr(contents, "LIMIT_S", -1.0)
    assert of_tensors(torch, [torch.ones(3)]) == "not gone through in -1 s"
