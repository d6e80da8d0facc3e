"""The board's record: what is written is read, whole or not at all."""

import hypothesis
import pytest
from hypothesis import strategies as st

from monarch_nb.core.wire import board

times, counts = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


@hypothesis.given(st.integers(0, 255), times, st.text(), times, counts, counts)
def test_what_is_written_is_read(state, since_ns, what, busy_ns, calls, failed):
    slot = board.BoardSlot(bytearray(2 * board.SLOT_BYTES), 1)
    slot.write(state, since_ns, what, busy_ns, calls, failed, queue=3)
    status = slot.read()
    assert status is not None
    assert status[:2] == (state, since_ns)
    assert status[3:] == (busy_ns, calls, failed, 3, slot.beat)
    fits = what.encode("utf-8", "replace")[: board.WHAT_BYTES].decode("utf-8", "ignore")
    assert status.what == fits


def test_the_queue_depth_is_written_alone_and_says_at_most_65535():
    slot = board.BoardSlot(bytearray(2 * board.SLOT_BYTES), 1)
    slot.write(board.BUSY, 1, "trainer.step()", 2, 3, 4, queue=10**6)
    before = slot.read()
    assert before.queue == board.MAX_QUEUE == 65535
    slot.write_queue(258)
    assert slot.read() == before._replace(queue=258)
    slot.write_queue(10**6)
    assert slot.read() == before


@hypothesis.given(st.integers(1, board.SLOT_BYTES - 1))
def test_a_record_that_was_cut_short_is_not_believed(done):
    buffer = bytearray(board.SLOT_BYTES)
    slot = board.BoardSlot(buffer, 0)
    slot.write(board.BUSY, 1, "trainer.step()", 2, 3, 4, 5)
    before = bytes(buffer)
    slot.write(board.IDLE, 2**62, "x" * board.WHAT_BYTES, 2**63, 2**31, 2**31, 2**15)
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
        board.BoardSlot(buffer, index).write_queue(9)
    board.BoardSlot(buffer, 1).clear()
    found = [board.BoardSlot(buffer, index).read() for index in range(3)]
    assert [each and (each.since_ns, each.queue) for each in found] == [(0, 9), None, (2, 9)]


def test_a_slot_nobody_wrote_to_has_no_record():
    assert board.BoardSlot(bytearray(board.SLOT_BYTES), 0).read() is None


def test_the_counter_wraps_without_ever_being_zero():
    slot = board.BoardSlot(bytearray(board.SLOT_BYTES), 0)
    slot._counter = 0xFFFFFFFF
    slot.write(board.IDLE, 1)
    assert slot.beat == 1
    assert slot.read() is not None


@pytest.mark.parametrize("state, name", [(board.BUSY, "busy"), (99, "state 99")])
def test_states_have_names(state, name):
    assert board.Status(state, 0, "", 0, 0, 0, 0, 0).state_name == name
