"""The board's record: what is written is read, whole or not at all."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from monarch_nb.core import board

counts = st.integers(0, 2**64 - 1)


@hypothesis.given(st.integers(0, 255), counts, st.text(), counts, counts)
def test_what_is_written_is_read(state, since_ns, what, beat, calls):
    slot = board.BoardSlot(bytearray(2 * board.SLOT_BYTES), 1)
    slot.write(state, since_ns, what, beat, calls)
    status = slot.read()
    assert status is not None
    assert status[:2] == (state, since_ns)
    assert status[3:] == (beat, calls)
    fits = what.encode("utf-8", "replace")[: board.WHAT_BYTES].decode("utf-8", "ignore")
    assert status.what == fits


@hypothesis.given(st.integers(1, board.SLOT_BYTES - 1))
def test_a_record_that_was_cut_short_is_not_believed(done):
    buffer = bytearray(board.SLOT_BYTES)
    slot = board.BoardSlot(buffer, 0)
    slot.write(board.BUSY, 1, "trainer.step()", 2, 3)
    before = bytes(buffer)
    slot.write(board.IDLE, 2**62, "x" * board.WHAT_BYTES, 2**63, 2**63)
    after = bytes(buffer)
    buffer[:] = after[:done] + bytes(board.SLOT_BYTES - done)  # cleared first, then written forward
    assert slot.read() is None or bytes(buffer) == after
    buffer[:] = after[:done] + before[done:]
    torn = slot.read()
    assert torn is None or torn in (board.parse(before), board.parse(after))


def test_slots_do_not_touch_each_other():
    buffer = bytearray(3 * board.SLOT_BYTES)
    for index in range(3):
        board.BoardSlot(buffer, index).write(index, index, "x" * 500, index, index)
    board.BoardSlot(buffer, 1).clear()
    assert [board.BoardSlot(buffer, index).read() is None for index in range(3)] == [0, 1, 0]


def test_a_slot_nobody_wrote_to_has_no_record():
    assert board.BoardSlot(bytearray(board.SLOT_BYTES), 0).read() is None


def test_the_counter_wraps_without_ever_being_zero():
    slot = board.BoardSlot(bytearray(board.SLOT_BYTES), 0)
    slot._counter = 0xFFFFFFFF
    slot.write(board.IDLE, 1)
    assert slot._counter == 1
    assert slot.read() is not None


@pytest.mark.parametrize("state, name", [(board.BUSY, "busy"), (99, "state 99")])
def test_states_have_names(state, name):
    assert board.Status(state, 0, "", 0, 0).state_name == name
