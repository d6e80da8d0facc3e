"""A session over connections that break anywhere: nothing is lost, doubled or out of order."""

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.wire.frames import GATEWAY as GATEWAY_BITS
from monarch_nb.errors import ProtocolError
from monarch_nb.net.hosts import handshake
from monarch_nb.net.hosts.pieces import Part
from monarch_nb.net.hosts.records import BODY_BYTES, RecordReader, Sealer
from monarch_nb.net.hosts.session import WINDOW_BYTES, Incoming, Outgoing

KEY = b"k" * 16


class Ends:
    """A sender and a receiver, and the records that are on their way between them."""

    def __init__(self) -> None:
        self.outgoing = Outgoing()
        self.incoming = Incoming()
        self.on_the_way: list[tuple[int, bytes]] = []
        self.got: list[bytes] = []

    def put(self, flow: int, piece: bytes) -> None:
        self.outgoing.put((flow, 0), [piece])

    def send(self) -> None:
        if (record := self.outgoing.next()) is not None:
            self.on_the_way.append((record[0], b"".join(record[1])))

    def arrive(self) -> None:
        if self.on_the_way:
            number, body = self.on_the_way.pop(0)
            if self.incoming.take(number, len(body)):
                self.got.append(body)

    def acknowledge(self) -> None:
        self.outgoing.acknowledge(self.incoming.received)

    def break_off(self) -> None:
        """Lose what is on its way, and begin again over another connection."""
        self.on_the_way.clear()
        self.outgoing.begin_again(self.incoming.received)

    def finish(self) -> None:
        self.acknowledge()
        while not self.outgoing.is_empty:
            self.send()
            assert self.on_the_way, "what the other end lacks is sent"
            self.arrive()
            self.acknowledge()


steps = st.lists(
    st.sampled_from(["put", "put", "send", "send", "arrive", "acknowledge", "break_off"]),
    max_size=80,
)


@settings(max_examples=300)
@given(steps)
def test_each_piece_comes_once_and_in_order(steps):
    ends = Ends()
    count = 0
    for step in steps:
        if step == "put":
            ends.put(count % 3, b"%d:%d;" % (count % 3, count))
            count += 1
        else:
            getattr(ends, step)()
    ends.finish()
    pieces = [piece for body in ends.got for piece in body.decode().split(";") if piece]
    numbers = [int(piece.partition(":")[2]) for piece in pieces]
    assert sorted(numbers) == list(range(count))
    for flow in range(3):
        mine = [number for number in numbers if number % 3 == flow]
        assert mine == sorted(mine)


GATEWAY = 3 << 48 | GATEWAY_BITS
flows = st.one_of(
    st.tuples(st.sampled_from([11, 12]), st.sampled_from([21, 22])),
    st.tuples(st.sampled_from([11, 12]), st.just(GATEWAY)),
    st.tuples(st.just(GATEWAY), st.sampled_from([21, 22])),
)


FILLER = bytes(BODY_BYTES // 2)  # records have one piece each: flows take turns


@settings(max_examples=200)
@given(st.lists(st.one_of(st.tuples(flows, st.integers(1, 3)), st.none()), max_size=15))
def test_casts_and_folded_answers_overtake_nothing_of_theirs(steps):
    outgoing = Outgoing()
    put, left = [], []

    def send() -> None:
        record = outgoing.next()
        if record is not None:
            outgoing.acknowledge(record[0])
            left.extend(b"".join(record[1]).replace(FILLER, b" ").decode().split())

    for number, step in enumerate(steps):
        if step is None:
            send()
            continue
        flow, size = step
        ends = [each for each in flow if each != GATEWAY]
        put.append((ends, [f"{number}.{piece}" for piece in range(size)]))
        outgoing.put(flow, [each.encode() + FILLER for each in put[-1][1]])
    while not outgoing.is_empty:
        send()
    assert sorted(left) == sorted(piece for _, pieces in put for piece in pieces)
    order = {piece: at for at, piece in enumerate(left)}
    for at, (ends, pieces) in enumerate(put):
        for later_ends, later in put[at:]:
            if set(ends) <= set(later_ends) or set(later_ends) <= set(ends):
                both = [*pieces, *later] if later is not pieces else pieces
                assert [order[each] for each in both] == sorted(order[each] for each in both)


def test_a_long_message_holds_up_no_other():
    ends = Ends()
    ends.outgoing.put((1, 0), [b"x" * (BODY_BYTES // 2)] * 20)
    ends.put(2, b"short")
    ends.send()
    ends.send()
    assert any(b"short" in body for _, body in ends.on_the_way)


def test_a_part_has_a_record_of_its_own_and_takes_turns():
    outgoing = Outgoing()
    large = memoryview(bytes(BODY_BYTES))
    outgoing.put((1, 2), [b"begins", Part.of(1, 2, large), b"ends"])
    outgoing.put((3, 2), [b"short"])
    bodies = [outgoing.next()[1] for _ in range(3)]
    assert bodies == [[b"begins", b"short"], Part.of(1, 2, large), [b"ends"]]
    assert outgoing.next() is None
    outgoing.begin_again(1)
    assert outgoing.next() == (2, Part.of(1, 2, large)), "what is in it was kept"
    assert outgoing.drain(1) == bodies[1:]


def test_no_more_is_on_its_way_than_the_window():
    ends = Ends()
    piece = b"x" * (BODY_BYTES // 2)
    ends.outgoing.put((1, 0), [piece] * 100)
    for _ in range(100):
        ends.send()
    size = sum(len(body) for _, body in ends.on_the_way)
    assert size <= WINDOW_BYTES + BODY_BYTES
    ends.arrive()
    ends.acknowledge()
    before = len(ends.on_the_way)
    ends.send()
    assert len(ends.on_the_way) == before + 1


def test_what_cannot_be_is_a_protocol_error():
    ends = Ends()
    with pytest.raises(ProtocolError):
        ends.incoming.take(2, 1)
    with pytest.raises(ProtocolError):
        ends.outgoing.acknowledge(1)
    with pytest.raises(ProtocolError):
        handshake.unpack_greeting(b"MNB9" + bytes(handshake.GREETING_BYTES - 4))
    with pytest.raises(ProtocolError):
        handshake.Secret.from_text("abc")


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.integers(1, 40))
def test_records_come_whole_however_they_are_cut(bodies, cut):
    sealer, reader = Sealer(KEY), RecordReader(KEY)
    data = b"".join(bytes(sealer.seal(body)) for body in bodies)
    assert [bytes(each) for each in fed(reader, data, cut)] == bodies


def fed(reader, data, cut):
    """What a reader makes of data that comes in parts."""
    while data:
        part = data[: min(cut, len(reader.room))]
        reader.room[: len(part)] = part
        data = data[len(part) :]
        yield from reader.take(len(part))


@given(st.integers(1, BODY_BYTES), st.integers(1 << 12, 1 << 18))
def test_what_is_behind_a_record_comes_into_the_memory_where_it_shall_be(size, cut):
    sealer, reader = Sealer(KEY), RecordReader(KEY)
    behind = os.urandom(1000) * (size // 1000) + b"x" * (size % 1000)
    data = bytes(sealer.seal(b"head", behind=memoryview(behind))) + bytes(sealer.seal(b"next"))
    room = memoryview(bytearray(size))
    bodies = fed(reader, data, cut)
    assert bytes(next(bodies)) == b"head"
    reader.open_into(room)
    next(bodies)
    assert room == behind
    assert [bytes(each) for each in bodies] == [b"next"]


def test_what_does_not_fit_there_is_refused():
    sealer, reader = Sealer(KEY), RecordReader(KEY)
    bodies = fed(reader, bytes(sealer.seal(b"head", behind=memoryview(b"long"))), 1)
    next(bodies)
    reader.open_into(memoryview(bytearray(3)))
    with pytest.raises(ProtocolError):
        next(bodies)


@given(st.binary(min_size=1, max_size=30), st.integers(0, 1000), st.integers(1, 255))
def test_a_record_that_was_changed_is_refused(body, place, change):
    record = bytearray(Sealer(KEY).seal(body))
    record[place % len(record)] ^= change
    reader = RecordReader(KEY)
    reader.room[: len(record)] = record
    try:
        found = list(reader.take(len(record)))
    except ProtocolError:
        return
    assert found == []  # its length is longer now: the rest is waited for


def test_who_does_not_know_the_secret_is_not_understood():
    dialler, listener = handshake.random_bytes(), handshake.random_bytes()
    sealer, _ = handshake.ciphers(b"a" * 32, dialler, listener, dials=True)
    record = bytes(sealer.seal(b"let me in"))
    for key, opens in ((b"a" * 32, True), (b"b" * 32, False)):
        _, reader = handshake.ciphers(key, dialler, listener, dials=False)
        reader.room[: len(record)] = record
        with contextlib.nullcontext() if opens else pytest.raises(ProtocolError):
            assert [bytes(each) for each in reader.take(len(record))] == [b"let me in"]


@pytest.mark.parametrize("size", [0, 15, BODY_BYTES + 17, (1 << 32) - 1])
def test_a_record_of_a_size_that_none_has_is_not_waited_for(size):
    reader = RecordReader(KEY)
    reader.room[:5] = size.to_bytes(4, "little") + b"x"
    with pytest.raises(ProtocolError):
        list(reader.take(5))


def test_a_record_that_comes_again_is_refused():
    record = bytes(Sealer(KEY).seal(b"pay me"))
    reader = RecordReader(KEY)
    reader.room[: 2 * len(record)] = record * 2
    with pytest.raises(ProtocolError):
        list(reader.take(2 * len(record)))


def test_the_two_directions_of_two_connections_have_four_keys():
    one, two = (handshake.random_bytes() for _ in range(2))
    ours = handshake.ciphers(b"secret", one, two, dials=True)
    theirs = handshake.ciphers(b"secret", one, two, dials=False)
    record = ours.sealer.seal(b"there")
    for reader, opens in ((theirs.reader, True), (ours.reader, False)):
        reader.room[: len(record)] = record
        if opens:
            assert [bytes(each) for each in reader.take(len(record))] == [b"there"]
        else:
            with pytest.raises(ProtocolError):
                list(reader.take(len(record)))
