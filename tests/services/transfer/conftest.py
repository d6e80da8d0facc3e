"""Actors that offer memory, and the proof that nothing of it stays."""

import gc

import pytest

from tests.services.transfer.owners import Owner, here
from tests.support import eventually


@pytest.fixture
def owners(procs):
    """An actor on each of four ranks; in the end nothing is registered or lent anywhere."""
    made = procs.spawn("owners", Owner)
    probe = procs.spawn("probe", Owner)
    yield made
    made.stop().get(10)
    empty = {"buffers": 0, "bytes": 0, "leaving": 0}
    assert list(probe.registered.call().get(10).values()) == [empty] * 4
    gc.collect()
    assert here() == empty
    eventually(lambda: set(probe.collect.call().get(10).values()) == {0})
    probe.stop().get(10)
