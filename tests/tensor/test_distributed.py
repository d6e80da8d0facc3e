"""One tensor cut over the ranks of a mesh: it computes as the whole does here."""

import copy

import pytest
import torch
from torch import nn

from monarch_nb import Mesh, distribute, module_to_mesh
from monarch_nb.tensor import inspect

same = torch.testing.assert_close

SPECS = [None, ["dp", None], [None, "tp"], ["dp", "tp"], [("dp", "tp"), None], ["tp"]]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_distributed_is_the_same_tensor(square, spec):
    t = torch.randn(8, 12)
    dt = distribute(t, square, sharding_spec=spec)
    assert (dt.shape, dt.dtype) == (t.shape, t.dtype)
    same(dt.full_tensor(), t)
    same((dt @ dt.T).full_tensor(), t @ t.T, rtol=1e-4, atol=1e-5)
    same(
        ((dt * 2).relu().sum(0) / 3).full_tensor(), (t * 2).relu().sum(0) / 3, rtol=1e-4, atol=1e-5
    )
    assert dt.mean().item() == pytest.approx(t.mean().item(), abs=1e-6)


def test_a_rank_has_its_part(square):
    t = torch.arange(32.0).reshape(8, 4)
    dt = distribute(t, square, ["dp", "tp"])
    same(inspect(dt, dp=1, tp=0), t[4:, :2])
    assert "as one" in repr(dt)


def test_local_tensors_and_numbers_take_part(square):
    t = torch.randn(8, 4)
    dt = distribute(t, square, ["dp"])
    same((dt + torch.ones(4) - 2).full_tensor(), t + torch.ones(4) - 2)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 16)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


def train(model, x, y, optimizer):
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "sharding", [None, {"first.*": ["tp"], "second.weight": [None, "tp"], "*": None}], ids=str
)
def test_a_module_trains_as_it_does_here(square, kind, sharding):
    local = Net()
    model = module_to_mesh(copy.deepcopy(local), square, sharding)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    dx, dy = distribute(x, square, ["dp"]), distribute(y, square, ["dp"])
    here = train(local, x, y, OPTIMIZERS[kind](local.parameters()))
    there = train(model, dx, dy, OPTIMIZERS[kind](model.parameters()))
    assert there == pytest.approx(here, abs=1e-4)
    for name, parameter in model.named_parameters():
        same(parameter.full_tensor(), local.get_parameter(name).detach(), rtol=1e-3, atol=1e-4)


LOSSES = {
    "mse": nn.MSELoss(),
    "mse sum": nn.MSELoss(reduction="sum"),
    "l1": nn.L1Loss(),
    "smooth l1": nn.SmoothL1Loss(),
    "huber": nn.HuberLoss(),
    "cross entropy": lambda x, y: nn.functional.cross_entropy(x, y.argmax(1)),
    "soft targets": lambda x, y: nn.functional.cross_entropy(x, y.softmax(1)),
    "binary": lambda x, y: nn.functional.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "logits": lambda x, y: nn.functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "kl": lambda x, y: nn.functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "margin": lambda x, y: nn.functional.soft_margin_loss(x, y.sign()),
}


@pytest.mark.parametrize("spec", [["dp"], ["dp", "tp"], [None, "tp"]], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_loss_is_that_of_the_whole(square, name, spec):
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    dx = distribute(x.requires_grad_(), square, spec)
    loss, there = LOSSES[name](x, y), LOSSES[name](dx, distribute(y, square, spec))
    loss.backward()
    there.backward()
    assert there.item() == pytest.approx(loss.item(), abs=1e-5)
    same(dx.grad.full_tensor(), x.grad)


def test_a_module_keeps_what_it_shares(square):
    net = Net()
    net.twin = net.first
    net.register_buffer("seen", torch.zeros(2))
    moved = module_to_mesh(net, square)
    assert moved is net
    assert moved.twin.weight is moved.first.weight
    assert moved.seen.full_tensor().tolist() == [0, 0]
    assert module_to_mesh(moved, square).first.weight is moved.first.weight


@pytest.mark.parametrize(
    "spec, text",
    [
        (["zz", None], "no axis 'zz', only dp, tp"),
        (["dp", "dp"], "axis 'dp' twice"),
        ([None, None, "dp"], "has an entry for each dimension"),
        ("dp", "has an entry for each dimension"),
        ([None, "tp"], "has size 5, which does not divide into 2 parts"),
    ],
    ids=str,
)
def test_specs_that_fit_nothing(square, spec, text):
    with pytest.raises(ValueError, match=text):
        distribute(torch.ones(4, 5), square, spec)


def test_what_cannot_be_distributed(square):
    dt = distribute(torch.ones(4, 4), square)
    with pytest.raises(TypeError, match="on a mesh already"):
        distribute(dt, square)
    with square.activate():
        x = torch.ones(4, 4)
    with pytest.raises(ValueError, match="of one mesh and stream"):
        x + dt
    with pytest.raises(TypeError, match="no part in a graph"):
        distribute(torch.ones(2, requires_grad=True) * 2, square)
    for shape, names, text in [((2, 2), ("a",), "with the axes"), ((2, 2), ("a", "a"), "twice")]:
        with pytest.raises(ValueError, match=text):
            Mesh(shape=shape, mesh_dim_names=names)


def test_what_is_cut_over_ranks_has_no_value_of_a_ranks_own(square):
    dt = distribute(torch.ones(4, 4), square, ["dp"])
    for misuse in (
        lambda: dt.reduce("dp"),
        lambda: dt.slice_mesh(dp=0),
        lambda: dt.to_mesh(square),
    ):
        with pytest.raises(ValueError, match="one tensor over all ranks.*full_tensor"):
            misuse()


def test_execute_computes_on_what_is_distributed(square):
    dt = distribute(torch.arange(8.0), square, ["dp"])
    same(square.execute(lambda x: x * 2, dt).full_tensor(), torch.arange(8.0) * 2)
    assert [value for _, value in square.execute(lambda x: x * 2, 3)] == [6, 6, 6, 6]


MASKS = {
    "none": None,
    "the same for all": (6, 6),
    "for each of the batch": (4, 1, 6, 6),
    "for each head": (1, 8, 6, 6),
}


@pytest.mark.parametrize(
    "spec", [None, ["dp", "tp"], ["dp"], [None, "tp"], [None, None, "tp"]], ids=str
)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_that_of_the_whole(square, spec, mask):
    attend = nn.functional.scaled_dot_product_attention
    parts = [torch.randn(4, 8, 6, 5, requires_grad=True) for _ in range(3)]
    shape = MASKS[mask]
    bias = None if shape is None else torch.randn(shape)
    wanted = attend(*parts, attn_mask=bias, is_causal=bias is None)
    wanted.square().sum().backward()
    cut = [distribute(part.detach(), square, spec).requires_grad_() for part in parts]
    found = attend(
        *cut,
        attn_mask=None if bias is None else distribute(bias, square),
        is_causal=bias is None,
    )
    found.square().sum().backward()
    same(found.full_tensor(), wanted.detach())
    for here, there in zip(parts, cut, strict=True):
        same(there.grad.full_tensor(), here.grad)
