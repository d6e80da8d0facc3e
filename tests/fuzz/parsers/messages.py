"""Frames, the messages in them, and what goes between hosts."""

import contextlib
from collections.abc import Callable

from monarch_nb.core import reply_folding
from monarch_nb.core.cast_tree import TreeCast, TreeFold
from monarch_nb.core.casting import pack_runs, unpack_runs
from monarch_nb.core.wire import board, frames, leases
from monarch_nb.errors import ProtocolError
from monarch_nb.net.hosts import pieces
from monarch_nb.net.hosts.records import BODY_BYTES, RecordReader, Sealer
from monarch_nb.net.streams import StreamReader

KEY = bytes(16)


def frame(data: bytes) -> bool:
    """Any frame is refused with ProtocolError, or is messages with the bytes that came."""
    try:
        found = frames.open_frames([data])
    except ProtocolError:
        return False
    header = frames.parse_header(data)
    if header[0] != frames.BATCH:
        assert frames.HEADER.pack(*header) + bytes(found[0].payload) == data
    else:
        assert sum(frames.HEADER.size + 4 + len(each.payload) for each in found) <= len(data)
    return True


def stream(data: bytes) -> bool:
    """Any stream gives the same messages whole and in two parts, or is refused with
    ProtocolError both times."""
    middle = data[0] % len(data) if data else 0
    whole, cut = StreamReader(), StreamReader()
    one = _or_none(lambda: whole.feed(data))
    two = _or_none(lambda: cut.feed(data[:middle]) + cut.feed(data[middle:]))
    assert (one is None) == (two is None)
    if one is None or two is None:
        return False
    assert list(map(_contents, one)) == list(map(_contents, two))
    return True


def piece(data: bytes) -> bool:
    """Any record of pieces is refused with ProtocolError, or is pieces that can be sent on and are
    read as the same: where from, where to, and what is in them."""
    try:
        found = list(pieces.read(memoryview(data)))
        again = b"".join(map(pieces.again, found))
    except ProtocolError:
        return False
    assert list(map(_sent_on, pieces.read(memoryview(again)))) == list(map(_sent_on, found))
    return True


def part(data: bytes) -> bool:
    """Any header of a part is refused with ProtocolError, or says a length that is allowed."""
    try:
        found = pieces.read_part(memoryview(data))
    except ProtocolError:
        return False
    assert 0 < found.reply <= pieces.PIECE_BYTES
    return True


def record(data: bytes) -> bool:
    """Any bytes that are no record of who has the key are refused with ProtocolError, or wait for
    the rest."""
    reader = RecordReader(KEY)
    try:
        at = 0
        found = []
        while at < len(data):
            room = reader.room
            count = min(len(room), len(data) - at)
            room[:count] = data[at : at + count]
            at += count
            found += [bytes(body) for body in reader.take(count)]
    except ProtocolError:
        return False
    sealer = Sealer(KEY)
    assert all(len(body) <= BODY_BYTES for body in found)
    assert data.startswith(b"".join(bytes(sealer.seal(body)) for body in found))
    return bool(found)


def runs(data: bytes) -> bool:
    """Any bytes are refused with ProtocolError, or are runs and a rest, written as they came."""
    try:
        found, rest = unpack_runs(memoryview(data))
    except ProtocolError:
        return False
    assert pack_runs(found) + bytes(rest) == data
    return True


def folded(data: bytes) -> bool:
    """Any bytes are refused with ProtocolError, or are answers that are written as they came."""
    try:
        port, groups = reply_folding.unfold(data)
    except ProtocolError:
        return False
    assert reply_folding.fold(port, groups) == data
    return True


def tree_cast(data: bytes) -> bool:
    """Any bytes are refused with ProtocolError, or are a cast of which every branch can be cut."""
    try:
        found = TreeCast.unpack(_message(frames.TREE_CAST, data))
    except ProtocolError:
        return False
    assert b"".join((found.head()[frames.HEADER.size :], found.piece)) == data
    assert sum(len(each.branch.nodes) for each in found.under()) < len(found.branch.nodes)
    return True


def tree_fold(data: bytes) -> bool:
    """Any bytes are refused with ProtocolError, or are folded answers that are written as they
    came."""
    try:
        found = TreeFold.unpack(_message(frames.TREE_FOLD, data))
        found.without([1])
    except ProtocolError:
        return False
    assert found.pack(0)[frames.HEADER.size :] == data
    return True


def lease_table(data: bytes) -> bool:
    """Any table is refused with ProtocolError, or is written as it is read."""
    try:
        found = leases.read_table(data)
    except ProtocolError:
        return False
    assert leases.read_table(leases.write_table(found)) == found
    return True


def status_record(data: bytes) -> bool:
    """Any bytes of a slot of the board are a status, or none."""
    slot = board.BoardSlot(bytearray(data[: board.SLOT_BYTES].ljust(board.SLOT_BYTES, b"\0")), 0)
    found = slot.read()
    assert found is None or (found.state_name and len(found.what) <= board.WHAT_BYTES)
    return found is not None


def _contents(message: frames.Message) -> tuple[object, ...]:
    header = (message.kind, message.flags, message.rank, message.tag, message.port, message.source)
    buffers = [bytes(memoryview(each)) for each in message.buffers]
    return (*header, message.reply, bytes(message.payload), buffers)


def _sent_on(message: frames.Message) -> tuple[object, ...]:
    _, _, _, tag, port, source, _, *inside = _contents(message)
    return tag, port, source, inside


def _message(kind: int, payload: bytes) -> frames.Message:
    return frames.Message((kind, 0, 0, 0, 0, 0, 1, 2), payload)


def _or_none(read: Callable[[], list[frames.Message]]) -> list[frames.Message] | None:
    with contextlib.suppress(ProtocolError):
        return read()
    return None
