"""A message to many: written short, and taken apart to what each of them would have been sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.casting import (
    MOST_RECEIVERS,
    Cast,
    Run,
    by_host,
    pack_runs,
    runs_of,
    unpack_runs,
)
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT
from monarch_nb.errors import RemoteProtocolError

members = st.lists(
    st.tuples(st.integers(0, 6).map(lambda n: (n // 3) << HOST_SHIFT | n), st.integers(0, 6))
)


def call(payload: bytes, buffers: int = 0) -> bytes:
    return HEADER.pack(frames.CALL, 0, buffers, 99, 5, 7, 42, 8) + payload


@given(members)
def test_runs_are_all_members_in_their_order(given_members):
    runs = runs_of(given_members)
    assert [each for run in runs for each in run.members()] == given_members
    back, rest = unpack_runs(memoryview(pack_runs(runs) + b"behind"))
    assert (back, bytes(rest)) == (runs, b"behind")


def test_consecutive_processes_of_a_host_are_one_run():
    assert runs_of((100 + n, 8 + n) for n in range(8)) == [Run(100, 8, 8)]
    assert runs_of([(1, 0), (2, 2)]) == [Run(1, 0, 1), Run(2, 2, 1)]
    assert runs_of([]) == []


def test_the_runs_of_each_host():
    first, second = Run(1 << HOST_SHIFT, 0, 2), Run(2 << HOST_SHIFT, 2, 2)
    assert by_host([first, second]) == {1: [first], 2: [second]}


def test_each_gets_the_message_with_its_rank():
    cast = Cast([Run(100, 4, 2), Run(7, 1, 1)], [call(b"payload", 1), b"buffer"])
    packed, *buffers = cast.pack(42)
    [message] = frames.open_frames([packed, *buffers])
    assert message.kind == frames.CAST
    got = list(Cast.unpack(message.payload, message.buffers).messages())
    assert [process for process, _ in got] == [100, 101, 7]
    for rank, (_, (frame, buffer)) in zip([4, 5, 1], got, strict=True):
        assert frame == HEADER.pack(frames.CALL, 0, 1, rank, 5, 7, 42, 8) + b"payload"
        assert buffer == b"buffer"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\1\0\0",
        pack_runs([Run(1, 0, 1)])[:-1],
        pack_runs([Run(1, 0, MOST_RECEIVERS + 1)]) + call(b""),
        pack_runs([Run(1, 0, 1)]) + call(b"")[:-1],
        pack_runs([Run(1, (1 << 32) - 1, 2)]) + call(b""),
        pack_runs([Run((1 << HOST_SHIFT) - 1, 0, 2)]) + call(b""),
        pack_runs([Run(1 << HOST_SHIFT, 0, 0)]) + call(b""),
    ],
    ids=[
        *("nothing", "no count", "half a run", "too many", "half a header"),
        *("no such rank", "on two hosts", "nobody"),
    ],
)
def test_what_is_no_cast_is_refused(nonsense):
    with pytest.raises(RemoteProtocolError):
        Cast.unpack(nonsense, [])
