"""Which ranks count as copies of each other."""

import copy

import pytest
import torch

from monarch_nb.elastic import State
from monarch_nb.elastic.parts import part_of


def made() -> State:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return State(model=model, optimizer=optimizer, seen=[])


def test_copies_are_the_same():
    assert part_of(made()) == part_of(made())


def test_buffers_and_plain_values_are_each_rank_s_own():
    other = made()
    other.model[1].running_mean.add_(1)
    other.seen.append(3)
    assert part_of(other) == part_of(made())


@pytest.mark.parametrize("index", range(4))
def test_one_parameter_that_differs_makes_another_part(index):
    other = made()
    with torch.no_grad():
        list(other.model.parameters())[index].view(-1)[-1] += 1e-6
    assert part_of(other) != part_of(made())


def test_so_does_what_the_optimizer_keeps():
    other = made()
    next(iter(other.optimizer.state.values()))["exp_avg"].add_(1)
    assert part_of(other) != part_of(made())


def test_and_the_shape():
    assert part_of(State(model=torch.nn.Linear(2, 3, bias=False))) != part_of(
        State(model=torch.nn.Linear(3, 2, bias=False))
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.bool])
def test_any_kind_of_numbers_is_compared(dtype):
    def one(value: int) -> State:
        model = torch.nn.Module()
        tensor = torch.zeros(7, 3).to(dtype)
        tensor.t()[1, 6] = value
        model.weight = torch.nn.Parameter(tensor.t(), requires_grad=False)
        return State(model=model)

    assert part_of(one(1)) == part_of(copy.deepcopy(one(1)))
    assert part_of(one(1)) != part_of(one(0))


def test_a_tensor_in_the_midst_of_another_is_compared():
    def one(value: float) -> State:
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.full((9,), value)[1:])
        return State(model=model)

    assert part_of(one(1.0)) == part_of(one(1.0)) != part_of(one(2.0))
