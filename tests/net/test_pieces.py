"""Long messages between hosts: any frames arrive as they were sent; noise is a protocol error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Message
from monarch_nb.errors import ProtocolError
from monarch_nb.net.hosts.bulk.joiner import Joiner
from monarch_nb.net.hosts.pieces import (
    BEGINS,
    GOES_ON,
    PART_BYTES,
    PIECE_BYTES,
    WHOLE,
    WHOLE_BYTES,
    Part,
    Piece,
    cut,
    read,
    read_part,
)
from monarch_nb.net.hosts.records import BODY_BYTES

sizes = st.integers(0, 9) | st.sampled_from(
    [
        *(PART_BYTES - 1, PART_BYTES, WHOLE_BYTES, WHOLE_BYTES + 1),
        *(PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1),
    ]
)
messages = st.lists(st.tuples(sizes, st.integers(0, 255)), min_size=1, max_size=5)


def on_the_link(bodies: list[bytes], source: int = 1) -> list[Piece]:
    sent = list(cut(source, 7, bodies))
    parts = [each for each in sent if isinstance(each, Part)]
    assert all(PART_BYTES <= len(each.data) <= BODY_BYTES for each in parts)
    assert all(len(each) < BODY_BYTES - 1000 for each in sent if not isinstance(each, Part))
    return sent


def taken(joiner: Joiner, piece: Piece):
    """What comes of a piece at the other end of the link."""
    if isinstance(piece, Part):
        part = read_part(memoryview(piece.header))
        joiner.room(part, part.reply)[:] = piece.data
        return joiner.filled(part, part.reply)
    [message] = read(memoryview(piece))
    return joiner.take(message)


def received(joiner: Joiner, sent: list[Piece]) -> list[list[bytes]]:
    found = [taken(joiner, piece) for piece in sent]
    return [[bytes(memoryview(part)) for part in each] for each in found if each is not None]


@given(messages)
def test_frames_arrive_as_they_were(message):
    bodies = [bytes([value]) * size for size, value in message]
    assert received(Joiner(), on_the_link(bodies)) == [bodies]


def test_what_is_short_is_left_as_it_is():
    bodies = [b"x" * (WHOLE_BYTES // 3)] * 3
    [sent] = on_the_link(bodies)
    [piece] = read(memoryview(sent))
    assert piece.tag == WHOLE
    assert [bytes(part) for part in (piece.payload, *piece.buffers)] == bodies


def test_as_many_frames_as_a_message_may_have():
    bodies = [b"x" * (PIECE_BYTES + 1), *[b""] * frames.MAX_BUFFERS]
    [found] = received(Joiner(), on_the_link(bodies))
    assert [len(each) for each in found] == [len(each) for each in bodies]


def test_pieces_of_two_senders_may_alternate():
    one, two = ([value * (3 * PIECE_BYTES)] for value in (b"1", b"2"))
    both = zip(on_the_link(one, 1), on_the_link(two, 2), strict=True)
    joiner = Joiner()
    assert received(joiner, [piece for pair in both for piece in pair]) == [one, two]


noise_pieces = st.builds(
    lambda tag, port, source, payload, buffers: Message(
        (frames.RELAY, 0, len(buffers), 0, tag, port, source, 0), payload, buffers
    ),
    st.sampled_from([BEGINS, GOES_ON, 9]),
    st.integers(0, 3),
    st.integers(0, 3),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=3), max_size=2),
)


@given(st.lists(noise_pieces, max_size=6))
def test_noise_is_a_protocol_error_and_harms_no_other(noise):
    joiner = Joiner()
    for piece in noise:
        try:
            joiner.take(piece)
        except ProtocolError:
            continue
    long = [b"x" * (PIECE_BYTES + 1)]
    assert received(joiner, on_the_link(long, 99)) == [long]


def test_a_piece_that_ends_behind_its_record_is_refused():
    [sent] = on_the_link([b"one", b"two"])
    for missing in range(1, 6):
        with pytest.raises(ProtocolError):
            list(read(memoryview(sent)[:-missing]))


@pytest.mark.parametrize("size", [0, PIECE_BYTES + 1])
def test_a_part_of_a_size_that_none_has_is_refused(size):
    header = frames.HEADER.pack(frames.RELAY, 0, 0, 0, GOES_ON, 7, 1, size)
    with pytest.raises(ProtocolError):
        read_part(memoryview(header))


@pytest.mark.parametrize("lengths", [b"", b"1234567", b"\xff" * 8, b"\0" * 7 + b"\x40"])
def test_lengths_that_cannot_be(lengths):
    with pytest.raises(ProtocolError):
        Joiner().take(Message((frames.RELAY, 0, 0, 0, BEGINS, 7, 1, 0), lengths))
