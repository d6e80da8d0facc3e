"""Where buffers lie in shared memory, as messages say it."""

import pytest

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import DETACHED, HEADER, LENT, RELAYED, RETURN, SHARED
from monarch_nb.core.wire.leases import Handle, Lendable, Shared, read_table, write_table
from monarch_nb.errors import RemoteProtocolError

HANDLE = Handle(1, 2, 3, 0, 5)


def bodies(kind: int, flags: int, payload: bytes, *buffers: bytes, port: int = 7) -> list[bytes]:
    return [HEADER.pack(kind, flags, len(buffers), 4, 0, port, 42, 8) + payload, *buffers]


def test_a_table_is_read_as_it_was_written():
    assert read_table(write_table([HANDLE, None, HANDLE])) == [HANDLE, None, HANDLE]
    with pytest.raises(RemoteProtocolError):
        read_table(write_table([HANDLE])[:-1])


def test_large_buffers_are_lent_and_the_others_stay():
    message = Lendable.of(bodies(frames.CALL, 0, b"pickle", b"large", b"small"))
    frame, table, small = message.lent([HANDLE, None])
    kind, flags, count, rank, *_ = frames.parse_header(frame)
    assert (kind, flags, count, rank) == (frames.CALL, SHARED | RELAYED, 2, 4)
    assert (frame[HEADER.size :], bytes(small)) == (b"pickle", b"small")
    assert read_table(table) == [HANDLE, None]


def test_a_large_pickle_is_lent_as_the_first_buffer():
    message = Lendable.of(bodies(frames.REPLY, DETACHED, b"", b"raw", b"large pickle"))
    assert [bytes(each) for each in message.buffers] == [b"large pickle", b"raw"]
    frame, _, raw = message.lent([HANDLE, None])
    assert frames.parse_header(frame)[1] == SHARED | RELAYED | LENT
    assert bytes(raw) == b"raw"


@pytest.mark.parametrize(
    "message",
    [
        bodies(frames.CONTROL, 0, b"{}", b"user data"),
        bodies(frames.CALL, SHARED, b"", b"table"),
        bodies(frames.CALL, DETACHED | RETURN, b"", b"pickle and sender"),
        bodies(frames.CALL, DETACHED, b"", b"prefix and pickle", port=7 | frames.GATE_BIT),
    ],
    ids=["control", "lent already", "with a sender", "to a gate"],
)
def test_others_travel_as_they_are(message):
    assert Lendable.of(message) is None


def shared(kind: int, flags: int, payload: bytes, placed: list[Handle | None], *inline: bytes):
    return bodies(kind, flags | SHARED, payload, write_table(placed), *inline)


def test_what_was_lent_is_taken_up_in_its_place():
    message = Shared.of(
        shared(frames.CALL, DETACHED, b"", [None, HANDLE], b"small", b"long pickle")
    )
    assert message.source == 42
    frame, *buffers = message.taken_up([memoryview(b"large")])
    assert frames.parse_header(frame)[1:3] == (DETACHED | RELAYED, 3)
    assert [bytes(each) for each in buffers] == [b"small", b"large", b"long pickle"]


def test_a_control_message_is_lent_again_where_it_was_before():
    message = Shared.of(shared(frames.CONTROL, LENT, b"{}", [HANDLE], b"user data"))
    again = Lendable.of(message.taken_up([memoryview(b"large")]))
    assert [bytes(each) for each in again.buffers] == [b"large"]
    frame, table, behind = again.lent([HANDLE])
    assert frames.parse_header(frame)[1:3] == (SHARED | RELAYED | LENT, 2)
    assert (read_table(table), bytes(behind)) == ([HANDLE], b"user data")


def test_a_message_that_shares_nothing_is_not_taken_up():
    assert Shared.of(bodies(frames.CALL, 0, b"pickle", b"small")) is None
    assert Shared.of(bodies(frames.CALL, 0, b"pickle")) is None


def test_a_table_of_buffers_that_are_not_there_is_refused():
    message = Shared.of(shared(frames.CALL, 0, b"", [None, None], b"one"))
    with pytest.raises(RemoteProtocolError):
        message.taken_up([])
