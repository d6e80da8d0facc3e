"""A moment's wait for a warm segment, where new pages would cost more."""

import threading
import time

import pytest

from tests.data.test_shared import ANNA, MB, arena, lend

__all__ = ["arena"]


@pytest.mark.alone  # it waits for some milliseconds, in which another thread has to run
def test_a_large_segment_on_its_way_back_is_waited_for(arena):
    data = bytes(100 * MB)
    first = lend(arena, data)
    returning = threading.Timer(0.001, arena.release, (first.segment, ANNA))
    returning.start()
    assert lend(arena, data).segment == first.segment
    returning.join()


def test_one_that_is_kept_is_not_waited_for_long(arena):
    data = bytes(100 * MB)
    first = lend(arena, data)
    start = time.monotonic()
    arena._await_warm(100 * MB)
    assert 0.003 < time.monotonic() - start < 0.1
    assert lend(arena, data).segment != first.segment
