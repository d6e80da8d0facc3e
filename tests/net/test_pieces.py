"""Long messages between hosts: any frames arrive as they were sent; noise is a protocol error."""

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.wire import frames
from monarch_nb.errors import ProtocolError
from monarch_nb.net import pieces
from monarch_nb.net.pieces import BEGINS, GOES_ON, PIECE_BYTES, Joiner, cut
from monarch_nb.net.wire import LONGEST_FRAME

sizes = st.integers(0, 9) | st.sampled_from([PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
messages = st.lists(st.tuples(sizes, st.integers(0, 255)), min_size=1, max_size=5)


def on_the_link(bodies: list[bytes], source: int = 1) -> list[list[zmq.Frame]]:
    sent = [[zmq.Frame(bytes(part)) for part in piece] for piece in cut(7, bodies, source)]
    assert all(len(part) <= LONGEST_FRAME for piece in sent for part in piece)
    return sent


def received(joiner: Joiner, sent: list[list[zmq.Frame]]) -> list[list[bytes]]:
    found = [joiner.take(piece) for piece in sent]
    return [[bytes(memoryview(part)) for part in each] for each in found if each is not None]


@given(messages)
def test_frames_arrive_as_they_were(message):
    bodies = [bytes([value]) * size for size, value in message]
    assert received(Joiner(), on_the_link(bodies)) == [bodies]


def test_what_is_short_is_left_as_it_is():
    bodies = [b"x" * PIECE_BYTES] * 3
    [[_, *parts]] = cut(7, bodies, 1)
    assert parts == bodies


def test_as_many_frames_as_a_message_may_have():
    bodies = [b"x" * (PIECE_BYTES + 1), *[b""] * frames.MAX_BUFFERS]
    [found] = received(Joiner(), on_the_link(bodies))
    assert [len(each) for each in found] == [len(each) for each in bodies]


def test_pieces_of_two_senders_may_alternate():
    one, two = ([value * (3 * PIECE_BYTES)] for value in (b"1", b"2"))
    both = zip(on_the_link(one, 1), on_the_link(two, 2), strict=True)
    joiner = Joiner()
    assert received(joiner, [piece for pair in both for piece in pair]) == [one, two]


parts = st.binary(max_size=20) | st.builds(
    frames.HEADER.pack,
    st.just(frames.RELAY),
    st.just(0),
    st.just(0),
    st.just(0),
    st.sampled_from([0, BEGINS, GOES_ON, 9]),
    *[st.integers(0, 3)] * 3,
)


@given(st.lists(st.lists(parts, min_size=1, max_size=3), max_size=6))
def test_noise_is_a_protocol_error_and_harms_no_other(noise):
    joiner = Joiner()
    for message in noise:
        try:
            joiner.take([zmq.Frame(part) for part in message])
        except ProtocolError:
            continue
    long = [b"x" * (PIECE_BYTES + 1)]
    assert received(joiner, on_the_link(long, 99)) == [long]


@pytest.mark.parametrize("lengths", [b"", b"1234567", b"\xff" * 8, b"\0" * 7 + b"\x40"])
def test_lengths_that_cannot_be(lengths):
    header = frames.HEADER.pack(frames.RELAY, 0, 0, 0, BEGINS, 7, 1, 0)
    with pytest.raises(ProtocolError):
        Joiner().take([zmq.Frame(header), zmq.Frame(lengths)])


def test_a_piece_is_a_fraction_of_the_longest_frame():
    assert pieces.PIECE_BYTES * 2 < LONGEST_FRAME
    assert 8 * (frames.MAX_BUFFERS + 1) < LONGEST_FRAME
