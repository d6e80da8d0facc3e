"""Batches come once each and in their order, whatever is begun again, in whatever process."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from monarch_nb.elastic.batches import Batches

COUNT = 20


class Noisy(Dataset):
    """Draws a number for each sample, as augmentation does."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(1).item()


def loaders():
    data = TensorDataset(torch.arange(COUNT))
    return {
        "in order": lambda: DataLoader(data, batch_size=3),
        "shuffled": lambda: DataLoader(data, batch_size=3, shuffle=True),
        "distributed": lambda: DataLoader(
            data, batch_size=3, sampler=DistributedSampler(data, num_replicas=2, rank=1)
        ),
        "noisy": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
        "by workers": lambda: DataLoader(data, batch_size=3, shuffle=True, num_workers=1),
    }


def text_of(batch: object) -> str:
    return f"{batch} {torch.rand(1).item()}"  # and a number of the body's


def taken(batches: Batches, count: int) -> list[str]:
    found = []
    for _ in range(count):
        found.append(text_of(batches.get()))
        batches.count()
    return found


@pytest.fixture(params=list(loaders()))
def loader(request):
    return loaders()[request.param]


def test_a_step_that_is_begun_again_has_its_batch_and_its_numbers(loader):
    torch.manual_seed(1)
    plain = taken(Batches(loader()), 10)
    torch.manual_seed(1)
    batches, found = Batches(loader()), []
    for _ in range(10):
        before = torch.get_rng_state()
        text_of(batches.get())
        torch.rand(7)
        torch.set_rng_state(before)
        batches.again()
        found.append(text_of(batches.get()))
        batches.count()
    assert found == plain


@pytest.mark.parametrize("at", [0, 1, 3, 6, 7, 8])
def test_another_process_goes_on_where_one_was(loader, at):
    torch.manual_seed(1)
    plain = taken(Batches(loader()), 12)
    torch.manual_seed(1)
    first = Batches(loader())
    taken(first, at)
    place, numbers = first.next_place, torch.get_rng_state()
    torch.manual_seed(99)
    second = Batches(loader())
    second.go_to(place)
    torch.set_rng_state(numbers)
    assert taken(second, 12 - at) == plain[at:]


def test_asked_twice_in_a_step_it_draws_no_numbers_again():
    batches = Batches(loaders()["shuffled"]())
    batches.get()
    drawn = torch.rand(1)
    batches.get()
    assert torch.rand(1) != drawn


def test_a_step_without_a_batch_takes_none():
    batches = Batches(loaders()["in order"]())
    batches.count()
    assert batches.get()[0].tolist() == [0, 1, 2]


def test_a_loader_without_batches_says_so():
    with pytest.raises(RuntimeError, match="has no batch"):
        Batches(DataLoader(TensorDataset(torch.arange(0)), batch_size=3)).get()
