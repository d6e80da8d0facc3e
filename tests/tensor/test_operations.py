"""Operations of torch on tensors of a mesh: each gives on every rank what plain torch gives."""

import copy
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from monarch_nb import Actor, endpoint
from monarch_nb.tensor import Tensor, fetch_shard, inspect, no_mesh

same = torch.testing.assert_close


def both(mesh, program):
    """What a program of torch returns here, and what it returns on two of the ranks."""
    torch.manual_seed(3)
    here = program()
    torch.manual_seed(3)
    with mesh.activate():
        there = program()
    return here, inspect(there, gpus=0), inspect(there, gpus=3)


def matrix():
    return torch.arange(12.0).reshape(3, 4)


def _through_a_view():
    x = matrix()
    x[1].view(2, 2).t().zero_()
    return x


def _assigned():
    x = matrix()
    x[0] = 9
    x[:, 2] = torch.tensor([1.0, 2.0, 3.0])
    x[x > 8] = 0
    return x


PROGRAMS = {
    "arithmetic": lambda: (matrix() * 2 + 1) / 3 - matrix() ** 2,
    "matmul": lambda: matrix() @ matrix().T,
    "comparison": lambda: (matrix() > 5, matrix() == matrix()),
    "views share memory": _through_a_view,
    "in place": lambda: matrix().add_(1).mul_(torch.full((3, 4), 0.5)),
    "out": lambda: torch.add(matrix(), 1, out=torch.empty(3, 4)),
    "several results": lambda: torch.std_mean(matrix(), dim=1),
    "a list of results": lambda: torch.split(matrix(), [1, 3], dim=1),
    "lists of tensors": lambda: torch.cat([matrix(), torch.stack([matrix()[0], matrix()[1]])]),
    "named result": lambda: matrix().sort(dim=1, descending=True),
    "indexing": lambda: (matrix()[1], matrix()[:, 1:3], matrix()[torch.tensor([2, 0])]),
    "assignment": _assigned,
    "dtypes": lambda: matrix().to(torch.int64).bitwise_and(6).double(),
    "complex": lambda: torch.fft.fft(matrix()).abs(),
    "scalars": lambda: torch.ones(()) * 3 + torch.tensor(4.0),
    "random": lambda: (torch.rand(5), torch.randn(5), torch.randperm(7), torch.randint(9, (4,))),
    "factories": lambda: (torch.eye(3), torch.linspace(0, 1, 5), torch.tensor([[1, 2], [3, 4]])),
    "like": lambda: (torch.zeros_like(matrix()), matrix().new_full((2,), 7.0)),
    "reduction": lambda: (matrix().sum(), matrix().mean(0), matrix().amax(), matrix().argmax(1)),
    "where": lambda: torch.where(matrix() > 4, matrix(), -matrix()),
    "einsum": lambda: torch.einsum("ij,kj->ik", matrix(), matrix()),
    "empty": lambda: torch.zeros(0, 3).sum(0),
    "expanded": lambda: matrix()[:, None].expand(3, 2, 4).contiguous(),
    "foreach": lambda: torch._foreach_mul([matrix(), torch.ones(2)], 3.0),
    "solve": lambda: torch.linalg.solve(torch.eye(3) * 2, torch.ones(3)),
    "scatter": lambda: torch.zeros(3, 4).scatter_(1, torch.tensor([[1], [2], [0]]), 5.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operation_is_that_of_torch(mesh, name):
    here, first, last = both(mesh, PROGRAMS[name])
    same(first, here)
    same(last, here)


def test_shape_dtype_and_strides_are_known_without_asking_a_rank(mesh):
    with mesh.activate():
        x = torch.zeros(2, 3, dtype=torch.float64).T[1:]
    assert (x.shape, x.dtype, x.stride(), x.device.type) == ((2, 2), torch.float64, (1, 3), "cpu")
    assert x.storage_offset() == 1
    assert repr(x) == "Tensor(float64[2, 2] on four {gpus: 4})"
    assert isinstance(x, Tensor)


def test_each_rank_has_values_of_its_own(mesh):
    with mesh.activate():
        x = mesh.rank_tensor("gpus") * torch.ones(2)
    assert [inspect(x, gpus=rank).tolist() for rank in range(4)] == [[r, r] for r in range(4)]


def test_rank_tensors_of_several_axes(square):
    both_axes = square.rank_tensor(("dp", "tp"))
    assert inspect(both_axes, dp=1, tp=0) == 2
    assert {
        name: int(inspect(each, dp=1, tp=0)) for name, each in square.rank_tensors().items()
    } == {
        "dp": 1,
        "tp": 0,
    }
    with pytest.raises(KeyError, match="does not have dimension 'zz'"):
        square.rank_tensor("zz")


def test_operations_on_local_tensors_stay_here(mesh):
    local = torch.ones(3)
    with mesh.activate():
        assert type(local + 1) is torch.Tensor
        assert float(torch.tensor(2.0) * 3) == 6
        with no_mesh.activate():
            assert type(torch.zeros(3)) is torch.Tensor
        remote = torch.zeros(3)
    assert type(torch.zeros(3)) is torch.Tensor
    assert isinstance(remote + 1, Tensor), "where it is decides, not what is active"


def test_a_local_tensor_goes_to_all_ranks(mesh):
    with mesh.activate():
        x = torch.ones(3)
    local = torch.tensor([1.0, 2.0, 3.0])
    total = x + local
    x.copy_(local)
    local.zero_()  # what was sent was sent
    assert inspect(total, gpus=2).tolist() == [2, 3, 4]
    assert inspect(x, gpus=1).tolist() == [1, 2, 3]


def test_activation_without_a_block(mesh):
    mesh.activate()
    x = torch.ones(2)
    mesh.deactivate()
    mesh.deactivate()
    assert isinstance(x, Tensor)
    assert type(torch.ones(2)) is torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 10))

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        weights = torch.softmax(x @ x.transpose(1, 2) / 8**0.5, dim=-1)
        return self.head(weights @ x)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def train(kind):
    model = Net()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    optimizer = OPTIMIZERS[kind](model.parameters())
    losses = []
    for _ in range(3):
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.detach())
    return losses, {name: each.detach() for name, each in model.named_parameters()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_model_trains_as_it_does_here(mesh, kind):
    here, first, last = both(mesh, lambda: train(kind))
    same(first, here, rtol=1e-4, atol=1e-5)
    same(last, here, rtol=1e-4, atol=1e-5)


def test_a_model_is_copied_saved_and_loaded(mesh):
    torch.manual_seed(1)
    local = Net()
    with mesh.activate():
        model = Net()
        model.load_state_dict(local.state_dict())
        twin = copy.deepcopy(model).double().requires_grad_(False)
        tokens = torch.tensor([[1, 2, 3]])
        out, wide = model(tokens), twin(tokens)
    same(inspect(model.state_dict()), dict(local.state_dict()))
    same(inspect(out.detach(), gpus=3), local(torch.tensor([[1, 2, 3]])).detach())
    assert (wide.dtype, wide.requires_grad) == (torch.float64, False)
    same(inspect(wide).float(), inspect(out.detach()), rtol=1e-4, atol=1e-5)


def test_gradients_by_torch_autograd(mesh):
    with mesh.activate():
        x = torch.arange(3.0).requires_grad_()
        [grad] = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        [second] = torch.autograd.grad(grad.sum(), x)
        with torch.no_grad():
            assert not (x * 2).requires_grad
    assert inspect(grad.detach()).tolist() == [0, 3, 12]
    assert inspect(second).tolist() == [0, 6, 12]


def test_a_function_of_autograd_of_the_users(mesh):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad + 0 * ctx.saved_tensors[0]

    with mesh.activate():
        x = torch.ones(3, requires_grad=True)
        Twice.apply(x).sum().backward()
    assert inspect(x.grad, gpus=1).tolist() == [2, 2, 2]


def test_ranks_hold_what_the_controller_holds(mesh):
    from tests.tensor.conftest import tensors_on

    with mesh.activate():
        kept = torch.zeros(3)
        for _ in range(100):
            kept = kept + 1
        other = kept.clone()
    assert tensors_on(mesh) == 2
    del kept
    assert tensors_on(mesh) == 1
    assert fetch_shard(other[:2]).get().tolist() == [100, 100]


def test_commands_are_not_waited_for(mesh, tmp_path):
    from monarch_nb.tensor import remote
    from tests.support import until_exists

    gate = str(tmp_path / "gate")

    @remote(propagate=lambda x: x)
    def held_up(x):
        until_exists(gate)
        return x

    with mesh.activate():
        x = held_up(torch.ones(2))
        for _ in range(1000):
            x = x + 1
    answer = fetch_shard(x, gpus=1)
    assert not answer.done()
    (tmp_path / "gate").touch()
    assert answer.get().tolist() == [1001, 1001]


LOADED = "torch.distributed.tensor"


class Loading(Actor):
    """What a rank looks like while one of its threads loads a module of torch."""

    @endpoint
    def begin(self) -> None:
        self.before = sys.modules.get(LOADED)
        sys.modules[LOADED] = types.ModuleType(LOADED)  # nothing in it yet

    @endpoint
    def end(self) -> None:
        if self.before is None:
            del sys.modules[LOADED]
        else:
            sys.modules[LOADED] = self.before


def test_values_come_while_a_rank_loads_distributed_tensors(mesh):
    loading = mesh.spawn("loading", Loading)
    with mesh.activate():
        t = matrix() + 1
    loading.begin.call().get()
    try:
        same(inspect(t), matrix() + 1)
    finally:
        loading.end.call().get()
        loading.stop().get()
