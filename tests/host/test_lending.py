"""What a gateway borrows from ranks, on a host at whose port strangers hold every file."""

import os
import resource

import pytest

from monarch_nb.data.shared import Arena
from monarch_nb.errors import BrokenError
from monarch_nb.host.lending import Lending

RANK = 11


@pytest.fixture
def lent():
    arena, lending = Arena(1 << 24), Lending(1 << 24, 1)
    handles = arena.lend([memoryview(b"one"), memoryview(b"two")], [RANK])
    yield lending, handles
    lending.close()
    arena.close()


@pytest.fixture
def no_file_left():
    """`no_file_left()`: none can be opened any more, until the test ends."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []

    def take() -> None:
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))

    yield take
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for each in taken:
        os.close(each)


def test_it_is_taken_up_where_no_file_can_be_opened(lent, no_file_left):
    lending, (one, two) = lent
    given_back = []
    view = lending.borrow(one, lambda: given_back.append(one))
    no_file_left()
    again = lending.borrow(two, lambda: given_back.append(two))
    assert (bytes(view), bytes(again)) == (b"one", b"two")
    del view, again
    assert given_back == [one, two]


def test_what_is_gone_is_broken(lent):
    lending, (one, _) = lent
    with pytest.raises(BrokenError):
        lending.borrow(one._replace(segment=one.segment + 1), lambda: None)
