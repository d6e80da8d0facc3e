"""What a process holds is told when it changes, and taken over by another."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from monarch_nb import elastic
from monarch_nb.elastic.held import Held, News
from monarch_nb.elastic.state import batches_of


def numpy_draws() -> float:
    return np.random.random()  # noqa: NPY002  the generator that older code shares


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), numpy_draws()


@pytest.fixture
def state() -> elastic.State:
    return elastic.State(loader=DataLoader(range(10), batch_size=2, shuffle=True))


def test_another_process_draws_the_same_numbers_and_batches(state):
    told = News().of(Held.now(state))
    found = [*drawn(), state.batch.tolist()]
    drawn()
    other = elastic.State(loader=DataLoader(range(10), batch_size=2, shuffle=True))
    Held.of(told).take(other)
    assert [*drawn(), other.batch.tolist()] == found


def test_in_the_midst_of_an_epoch(state):
    news, told = News(), {}
    for _ in range(3):
        told |= news.of(Held.now(state))
        assert state.batch is not None
        batches_of(state).count()
        drawn()
    told |= news.of(Held.now(state))
    found = [*drawn(), state.batch.tolist()]
    other = elastic.State(loader=DataLoader(range(10), batch_size=2, shuffle=True))
    Held.of(told).take(other)
    assert [*drawn(), other.batch.tolist()] == found


def test_only_what_has_changed_is_told(state):
    news = News()
    assert set(news.of(Held.now(state))) == {"cpu", "gpus", "python", "numpy", "place", "began"}
    assert news.of(Held.now(state)) == {}
    random.random()
    assert set(news.of(Held.now(state))) == {"python"}
    numpy_draws()
    torch.rand(1)
    assert set(news.of(Held.now(state))) == {"cpu", "numpy"}


def test_after_a_while_all_is_told_again(state):
    news = News()
    news.of(Held.now(state))
    news.forget()
    assert len(news.of(Held.now(state))) == 6
