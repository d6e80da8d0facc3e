"""Mappings that outlive their last view: quick to use again, and never a view of yesterday."""

import fcntl
import gc
import os
import platform
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data import attached
from monarch_nb.data.attached import attach, give_up_kept
from monarch_nb.data.shared import Arena

HOLDER = 11
SIZE = 8 << 20
KERNEL = tuple(int(part) for part in platform.release().split(".")[:2])
tells_what_was_written = pytest.mark.skipif(KERNEL < (6, 7), reason="Linux before 6.7")


@pytest.fixture
def arena() -> Iterator[Arena]:
    give_up_kept()
    made = Arena(1 << 28)
    yield made
    made.close()
    give_up_kept()


@pytest.fixture
def lend(arena) -> Callable[[int], Handle]:
    """Lend a buffer full of one byte, in place of the one before."""

    before: list[Handle] = []

    def lent(value: int, size: int = SIZE) -> Handle:
        while before:
            arena.release(before.pop().segment, HOLDER)
        before.extend(arena.lend([memoryview(bytes([value]) * size)], [HOLDER]))
        return before[0]

    return lent


def is_mapped(handle: Handle) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any("memfd:" in line and f" {handle.segment} " in line for line in lines)


def read(handle: Handle) -> set[int]:
    return set(np.unique(np.frombuffer(attach(handle, lambda: None), np.uint8)).tolist())


@tells_what_was_written
def test_the_next_buffer_in_the_same_place_costs_no_page_faults(lend):
    assert read(lend(1)) == {1}
    handle = lend(2)
    data = attach(handle, lambda: None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert sum(data[:: 1 << 12]) == 2 * SIZE >> 12
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
def test_what_a_holder_has_written_does_not_stay(lend, at):
    for value in (1, 2, 3):
        data = attach(lend(value), lambda: None)
        assert set(data) == {value}
        data[at] = 77
        del data
        gc.collect()


def test_a_mapping_that_was_written_is_given_up(lend):
    handle = lend(1)
    data = attach(handle, lambda: None)
    data[5] = 7
    del data
    assert not is_mapped(handle)


@tells_what_was_written
def test_it_is_released_once_and_kept_until_a_process_dies(lend):
    handle, released = lend(1), []
    view = attach(handle, lambda: released.append(1))
    del view
    assert released == [1]
    assert is_mapped(handle)
    give_up_kept()
    assert not is_mapped(handle)


def test_a_kernel_that_cannot_tell_what_was_written_keeps_nothing(lend, monkeypatch):
    monkeypatch.setattr(fcntl, "ioctl", Mock(side_effect=OSError("unknown")))
    handle = lend(1)
    assert read(handle) == {1}
    assert not is_mapped(handle)


def test_small_ones_are_not_kept(lend):
    handle = lend(1, attached.KEPT_FROM_BYTES - 1)
    assert read(handle) == {1}
    assert not is_mapped(handle)


@tells_what_was_written
def test_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(attached, "KEPT_BYTES", 2 * SIZE)
    arenas = [Arena(1 << 28) for _ in range(3)]
    handles = [each.lend([memoryview(bytes(SIZE))], [HOLDER])[0] for each in arenas]
    for handle in (*handles, handles[1]):
        read(handle)
    assert [is_mapped(handle) for handle in handles] == [False, True, True]
    for each in arenas:
        each.close()
    give_up_kept()


@tells_what_was_written
def test_a_child_that_was_forked_and_its_parent_do_not_disturb_each_other(lend):
    handle, released = lend(1), []
    data = attach(handle, lambda: released.append(1))
    if (child := os.fork()) == 0:
        os._exit(0 if set(data) == {1} and not released else 1)
    assert os.waitpid(child, 0)[1] == 0
    del data
    assert released == []  # the lease of who forks lasts as long as it lives
