"""Memory that is lent before it is copied: who lends goes on, who holds waits."""

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data.attached import attach, give_up_kept
from monarch_nb.data.shared import Arena
from monarch_nb.errors import BrokenError, ClosedError
from tests.support import eventually

ANNA, BORIS = 11, 12
DATA = b"x" * (8 << 20)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(1 << 28)
    yield made
    made.close()
    give_up_kept()


@pytest.fixture
def copies(monkeypatch) -> Iterator[threading.Event]:
    """Copies into new segments are made when this is set."""
    go = threading.Event()
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: (go.wait(20), write(*args))[1])
    yield go
    go.set()


def promise(arena: Arena, data: bytes, *holders: int) -> Handle:
    (handle,) = arena.promise([[memoryview(data)]], holders or (ANNA,))
    return handle


def test_it_is_promised_at_once_and_holders_wait(arena, copies):
    handle = promise(arena, DATA)
    assert Handle.unpack(handle.pack()) == handle
    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(lambda: bytes(attach(handle, lambda: None)))
        assert not copies.is_set()
        assert not holder.done()
        copies.set()
        assert holder.result(20) == DATA


def test_each_turn_of_a_segment_is_waited_for(arena):
    segments = set()
    for turn in range(1, 20):
        data = bytes([turn]) * len(DATA)
        handle = promise(arena, data)
        assert bytes(attach(handle, lambda: None)) == data
        segments.add(handle.segment)
        arena.release(handle.segment, ANNA)
        eventually(lambda: arena.statistics()["leased_bytes"] == 0)
    assert len(segments) == 1


def test_pieces_are_whole_where_they_arrive(arena):
    pieces = [b"a" * 100, DATA, b"b" * 5]
    (handle,) = arena.promise([[memoryview(each) for each in pieces]], [ANNA])
    assert bytes(attach(handle, lambda: None)) == b"".join(pieces)


def test_a_segment_whose_holders_have_died_is_not_used_while_it_is_filled(arena, copies):
    first = promise(arena, DATA)
    arena.forget(ANNA)
    second = promise(arena, DATA, BORIS)
    assert first.segment != second.segment
    copies.set()
    eventually(lambda: arena.statistics()["leased_bytes"] == len(DATA))


def test_a_copy_that_fails_is_told_to_the_holder(arena, monkeypatch):
    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    handle = promise(arena, DATA)
    with pytest.raises(BrokenError, match=str(handle.pid)):
        attach(handle, lambda: None)
    eventually(lambda: arena.statistics()["segments"] == 0)


def test_closed_before_it_is_copied(arena, copies):
    handle = promise(arena, DATA)
    arena.close()
    with pytest.raises(ClosedError):
        promise(arena, DATA)
    copies.set()
    eventually(lambda: arena.statistics()["segments"] == 0)
    with pytest.raises(BrokenError):
        attach(handle, lambda: None)
