"""What a call's arguments borrow goes back when the call has ended, not with the next one."""

import numpy as np
import pytest

from monarch_nb import Actor, LimitError, endpoint
from tests import inside
from tests.support import eventually


@pytest.fixture(scope="module")
def mesh_runtime(own_client: None) -> None:
    """All that the client lends is counted."""


LARGE = np.ones(8 << 20, np.uint8)


class Sync(Actor):
    @endpoint
    def total(self, array, error=None):
        if error:
            raise error
        return int(array.sum())


class Async(Actor):
    @endpoint
    async def total(self, array, error=None):
        if error:
            raise error
        return int(array.sum())


@pytest.mark.parametrize("kind", [Sync, Async])
@pytest.mark.parametrize("error", [None, ValueError("of the user")])
def test_nothing_is_lent_after_a_call(procs, kind, error):
    actors = procs.spawn("actors", kind)
    answer = actors.total.call(LARGE, error)
    if error is None:
        assert list(answer.get(10).values()) == [8 << 20] * 4
        eventually(lambda: inside.leased_bytes() == 0, 5)
    else:
        assert answer.exception(10) is not None
        del answer
        assert list(actors.total.call(LARGE[:8]).get(10).values()) == [8] * 4
        eventually(lambda: inside.leased_bytes() == 0, 5)
    actors.stop().get(10)


@pytest.mark.parametrize("kind", [Sync, Async])
def test_a_steady_exchange_needs_one_segment(procs, kind):
    actors = procs.spawn("actors", kind)
    large = np.ones(80 << 20, np.uint8)
    for _ in range(6):
        actors.total.call(large).get(20)
    segments = inside.lender()._segments
    assert len([each for each in segments if each.capacity >= large.nbytes]) == 1
    actors.stop().get(10)


@pytest.fixture
def no_room(monkeypatch):
    """This process may lend a megabyte."""
    monkeypatch.setattr(inside.lender(), "limit_bytes", 1 << 20)


def test_with_shared_memory_full_an_argument_travels_inline(procs, no_room):
    actors = procs.spawn("actors", Sync)
    assert list(actors.total.call(LARGE).get(20).values()) == [8 << 20] * 4
    assert inside.leased_bytes() == 0
    actors.stop().get(10)


def test_what_is_too_large_for_that_is_refused(procs, no_room):
    actors = procs.spawn("actors", Sync)
    with pytest.raises(LimitError, match="shared memory full: need .* bytes, free"):
        actors.total.call(np.ones(65 << 20, np.uint8))
    assert list(actors.total.call(LARGE[:8]).get(10).values()) == [8] * 4
    actors.stop().get(10)
