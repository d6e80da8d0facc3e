"""A state goes back to where a step began, and into another process, bit by bit."""

import copy

import pytest
import torch

from monarch_nb import elastic
from monarch_nb.core.wire import pickling
from monarch_nb.elastic import contents
from monarch_nb.elastic.held import Held
from monarch_nb.elastic.undo import before, undo

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
}


class Net(torch.nn.Module):
    """With weights that are tied, numbers that are drawn, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.second(torch.relu(self.first(x)))))


def made(kind: str, seed: int = 0) -> elastic.State:
    torch.manual_seed(seed)
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return elastic.State(model=model, optimizer=optimizer, schedule=schedule, seen=[], best=9.0)


def step(state: elastic.State) -> str:
    loss = state.model(torch.rand(8, 4)).square().mean()
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.schedule.step()
    state.seen.append(loss.item())
    state.best = min(state.best, loss.item())
    return loss.item().hex()


def steps(state: elastic.State, count: int) -> list[str]:
    return [step(state) for _ in range(count)]


@pytest.fixture(params=list(OPTIMIZERS))
def kind(request):
    return request.param


def test_a_step_without_its_optimizer_is_undone(kind):
    plain = steps(made(kind), 5)
    state, found = made(kind), []
    for _ in range(5):
        began = before(state, Held.now(state))
        state.model(torch.rand(8, 4)).sum().backward()  # buffers, gradients, random numbers
        state.seen.append("half")
        state.best = -1.0
        undo(state, began)
        found.append(step(state))
    assert found == plain
    assert [value.hex() for value in state.seen] == plain


@pytest.mark.parametrize("taken", [0, 3])
def test_another_process_has_all_of_it(kind, taken):
    plain = steps(made(kind), 6)
    first = made(kind)
    steps(first, taken)
    first.step = taken
    numbers = torch.get_rng_state()
    sent = contents.packed(contents.contents(first, taken, [])).contents
    description = pickling.loads(pickling.dumps(sent.description))
    second = made(kind, seed=5)
    steps(second, 1)  # it has a state of its own, which goes
    identities = [id(each) for each in second.model.parameters()]
    contents.fill(contents.describe(second, description), sent.tensors)
    torch.set_rng_state(numbers)
    assert steps(second, 6 - taken) == plain[taken:]
    assert second.step == taken
    assert [id(each) for each in second.model.parameters()] == identities


def test_a_copy_is_not_changed_by_what_is_done_with_it(kind):
    first = made(kind)
    steps(first, 2)
    sent = contents.packed(contents.contents(first, 2, [])).contents
    was = [each.clone() for each in sent.tensors]
    second = made(kind)
    contents.fill(contents.describe(second, copy.deepcopy(sent.description)), sent.tensors)
    steps(first, 2)
    steps(second, 2)
    assert all(map(torch.equal, sent.tensors, was))


def test_what_a_state_has_is_named():
    state = made("SGD")
    assert repr(state) == (
        "<State at step 0: model: Net, optimizer: SGD, schedule: StepLR, seen: list, best: float>"
    )
    with pytest.raises(AttributeError, match="has no 'modle'; it has step, loader, model"):
        state.modle
    with pytest.raises(TypeError, match="no loader"):
        state.batch
