"""Gradients one by one, functions with their own, and those that come back from another mesh; each
compared with plain torch."""

import pytest
import torch
from torch import nn

from monarch_nb.tensor import fetch_shard, grad_function, grad_generator, inspect


@grad_function
def scaled(x, *, by):
    return x * by, lambda grad: grad * by


@grad_function
def product(a, b):
    def backward(grad):
        return grad * b, grad * a

    return a * b, backward


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    x, bias = torch.randn(5, 4), torch.randn(1, 4, requires_grad=True)
    hidden = model(x + bias)
    a, b, c = hidden.split([2, 3, 3], 1)
    loss = scaled(a, by=3).sum() + b.softmax(-1).pow(2).mean() + torch.cat([a, c], 1).pow(2).sum()
    return loss, hidden, [*model.parameters(), bias]


def convolution():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    out = model(torch.randn(2, 3, 9, 9))
    return out.std(), out, list(model.parameters())


def recurrent():
    torch.manual_seed(0)
    model = nn.LSTM(4, 6, 2)
    out, (_, cell) = model(torch.randn(3, 2, 4))
    return out.sum() + cell.pow(2).sum(), out, list(model.parameters())


def in_place():
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    z = w.clone()
    z[1] = 5
    z.mul_(2)
    return (z * w).sum().double(), z, [w]


@pytest.mark.parametrize("program", [network, convolution, recurrent, in_place])
def test_they_are_those_of_autograd(program):
    loss, hidden, tensors = program()
    tensors = [*reversed(tensors), hidden, torch.ones(2, requires_grad=True)]
    expected = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    for _ in range(2):  # the graph is there still
        for one, other in zip(grad_generator(loss, tensors), expected, strict=True):
            assert other is one is None or torch.allclose(one, other, atol=1e-6)
    assert all(each.grad is None for each in tensors if each.is_leaf)


def test_several_roots():
    loss, hidden, tensors = network()
    seeds = [torch.tensor(2.0), torch.ones_like(hidden)]
    expected = torch.autograd.grad([loss, hidden], tensors, seeds, retain_graph=True)
    found = grad_generator([loss, hidden], tensors, seeds)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_no_more_is_computed_than_was_asked_for():
    ran = []

    def noted(name):
        @grad_function
        def note(x):
            return x * 2, lambda grad: ran.append(name) or grad * 2

        return note

    a = torch.ones(2, requires_grad=True)
    b = noted("first")(a)
    c = noted("second")(b)
    grads = grad_generator(c.sum(), [c, b, a])
    assert ran == []
    assert next(grads).tolist() == [1, 1]
    assert ran == []
    assert next(grads).tolist() == [2, 2]
    assert ran == ["second"]
    assert next(grads).tolist() == [4, 4]
    assert ran == ["second", "first"]


def test_what_is_asked_wrongly():
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"grad_roots=\[torch\.ones_like\(root\)\]"):
        grad_generator(w * 2, [w])
    with pytest.raises(ValueError, match="2 gradients for 1 roots"):
        grad_generator(w.sum(), [w], [torch.ones(()), torch.ones(())])
    with pytest.raises(RuntimeError, match="does not require gradients"):
        grad_generator(w.sum(), [torch.ones(3)])


def test_a_function_with_its_own_gradient():
    a, b = (
        torch.tensor([2.0, 3.0], requires_grad=True),
        torch.tensor([5.0, 7.0], requires_grad=True),
    )
    product(a, b).sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([5, 7], [2, 3])


@pytest.mark.parametrize("program", [network, convolution])
def test_on_the_ranks(mesh, program):
    loss, hidden, tensors = program()
    expected = torch.autograd.grad(loss, [*tensors, hidden])
    with mesh.activate():
        loss, hidden, tensors = program()
        found = list(grad_generator(loss, [*tensors, hidden]))
    for one, other in zip(inspect(found, gpus=2), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_gradients_come_back_from_another_mesh(mesh):
    left, right = mesh.slice(gpus=slice(0, 2)), mesh.slice(gpus=slice(2, 4))
    with left.activate():
        w = torch.ones(3) * (left.rank_tensor("gpus") + 1)
        w.requires_grad_()
        moved = (w * 2).to_mesh(right)
    moved.pow(2).sum().backward()
    assert moved.mesh.ranks == [2, 3]
    assert w.grad.mesh.ranks == [0, 1]
    assert inspect(w.grad).tolist() == [8, 8, 8]
    assert inspect(w.grad, gpus=1).tolist() == [16, 16, 16]


def test_along_new_axes_gradients_are_added_up(mesh):
    with mesh.slice(gpus=1).activate():
        w = torch.ones(3, requires_grad=True)
    (w.to_mesh(mesh) * mesh.rank_tensor("gpus")).sum().backward()
    assert fetch_shard(w.grad).get(10).tolist() == [6, 6, 6]
