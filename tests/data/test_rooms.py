"""Memory that is filled by who receives: lent as it is, and kept as long as anybody looks at it."""

import ctypes
import errno
import gc

import numpy as np
import pytest

from monarch_nb.data import segments
from monarch_nb.data.attached import attach
from monarch_nb.data.shared import Arena
from monarch_nb.errors import LimitError
from tests.support import open_fds

MB = 1 << 20
ANNA, BORIS = 11, 12


@pytest.fixture
def arena():
    made = Arena(64 * MB)
    yield made
    made.close()


def fill(room, value):
    size = len(room.whole)
    for begin in range(0, size, MB):
        end = min(begin + MB, size)
        room.part(begin, end)[:] = bytes([value]) * (end - begin)


def test_what_lies_in_a_room_is_lent_without_a_copy(arena):
    rooms = arena.rooms([3 * MB + 5, 2 * MB])
    for value, room in enumerate(rooms, 1):
        fill(room, value)
    other = np.full(MB, 3, np.uint8)
    handles = arena.lend([rooms[0].whole, memoryview(other), rooms[1].whole], [ANNA, BORIS])
    views = [np.frombuffer(attach(each, lambda: None), np.uint8) for each in handles]
    assert [(int(each[0]), int(each[-1])) for each in views] == [(1, 1), (3, 3), (2, 2)]
    assert arena.statistics()["segments"] == 2
    rooms[1].whole[0] = 7
    assert views[2][0] == 7, "it is the same memory"


def test_a_room_is_free_when_nobody_looks_at_it_any_more(arena):
    [room] = arena.rooms([2 * MB])
    fill(room, 1)
    [handle] = arena.lend([room.whole], [ANNA, BORIS])
    view = room.whole[:10]
    del room
    gc.collect()
    for holder in (ANNA, BORIS):
        assert arena.statistics()["leased_bytes"]
        arena.release(handle.segment, holder)
    assert arena.statistics()["leased_bytes"], "a view is left"
    del view
    gc.collect()
    assert arena.statistics()["leased_bytes"] == 0
    [again] = arena.rooms([2 * MB])
    fill(again, 2)
    assert arena.lend([again.whole], [ANNA])[0].segment == handle.segment


def test_a_room_that_was_left_half_filled_can_be_lent_from_afterwards(arena):
    [room] = arena.rooms([4 * MB])
    room.part(0, MB)[:] = bytes(MB)
    del room
    gc.collect()
    [handle] = arena.lend([memoryview(np.full(4 * MB, 5, np.uint8))], [ANNA])
    view = attach(handle, lambda: None)
    assert view[0] == view[-1] == 5
    assert arena.statistics()["segments"] == 1


def test_no_room(arena):
    with pytest.raises(LimitError):
        arena.rooms([65 * MB])
    assert arena.statistics()["segments"] == 0


class Refusing:
    """A kernel that has no pages left, or knows no such advice."""

    def __init__(self, code):
        self._code = code

    def madvise(self, *_):
        ctypes.set_errno(self._code)
        return -1


def test_no_pages_are_a_limit_error(arena, monkeypatch):
    [room] = arena.rooms([2 * MB])
    monkeypatch.setattr(segments, "_libc", Refusing(errno.ENOMEM))
    with pytest.raises(LimitError):
        room.part(0, MB)


def test_an_older_kernel_makes_pages_too(arena, monkeypatch):
    [room] = arena.rooms([2 * MB])
    monkeypatch.setattr(segments, "_libc", Refusing(errno.EINVAL))
    fill(room, 4)
    assert set(room.whole) == {4}


def test_rooms_of_a_closed_arena_leave_no_file(arena):
    before = open_fds()
    [room] = arena.rooms([2 * MB])
    fill(room, 1)
    arena.close()
    assert room.whole[0] == 1
    del room
    gc.collect()
    arena.release(0, 0)
    assert open_fds() == before
