"""Answers that are folded: nothing is lost, doubled or out of order, and little is sent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.casting import Run
from monarch_nb.core.reply_folding import Leaves, ReplyFolder, unfold
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, pack_batch
from monarch_nb.errors import RemoteProtocolError

OWN, CALLER = 999, 55


def answer(process: int, rank: int, port: int, payload: bytes, kind: int = frames.REPLY) -> bytes:
    return HEADER.pack(kind, 0, 0, rank, 3, port, process, 0) + payload


def unfolded(leaving):
    """What the caller is delivered, as (process, port, payload)."""
    for source, bodies, _ in leaving:
        for message in frames.open_frames(bodies):
            if message.kind != frames.FOLD:
                yield source, message.port, bytes(message.payload)
                continue
            assert source == OWN
            port, groups = unfold(message.payload)
            for group in groups:
                for process, _ in (each for run in group.runs for each in run.members()):
                    yield process, port, bytes(group.payload)


def test_equal_answers_leave_as_one_when_the_last_has_come():
    folder = ReplyFolder(OWN)
    folder.expect(CALLER, 7, 4)
    for rank in range(3):
        assert folder.take(100 + rank, CALLER, [answer(100 + rank, rank, 7, b"None")]) == []
    assert folder.is_holding
    [(source, [frame], _)] = folder.take(103, CALLER, [answer(103, 3, 7, b"None")])
    assert source == OWN
    [message] = frames.open_frames([frame])
    port, [group] = unfold(message.payload)
    assert port == 7
    assert (group.kind, group.tag, bytes(group.payload)) == (frames.REPLY, 3, b"None")
    assert group.runs == [Run(100, 0, 4)]
    assert folder.let_go() == {}


def test_what_has_come_leaves_after_a_moment_and_the_rest_later():
    folder = ReplyFolder(OWN)
    folder.expect(CALLER, 7, 2)
    folder.take(100, CALLER, [answer(100, 0, 7, b"a")])
    assert list(unfolded(folder.let_go()[CALLER])) == [(100, 7, b"a")]
    assert not folder.is_holding
    assert list(unfolded(folder.take(101, CALLER, [answer(101, 1, 7, b"a")]))) == [(101, 7, b"a")]


@pytest.mark.parametrize(
    "other",
    [
        [answer(101, 1, 7, b"error", frames.ERROR)],
        [answer(101, 1, 9, b"of a call to one")],
        [answer(101, 1, 7, bytes(5000))],
        [HEADER.pack(frames.REPLY, frames.SHARED, 1, 1, 3, 7, 101, 0), b"table"],
        [HEADER.pack(frames.OUTPUT, 0, 0, 0, 0, frames.OUTPUT_PORT, 101, 0) + b"printed"],
    ],
    ids=["an error", "another port", "a long one", "with buffers", "output"],
)
def test_nothing_else_is_held_nor_overtakes_what_is(other):
    folder = ReplyFolder(OWN)
    folder.expect(CALLER, 7, 3)
    folder.take(100, CALLER, [answer(100, 0, 7, b"a")])
    held, passed = folder.take(101, CALLER, other)
    assert list(unfolded([held])) == [(100, 7, b"a")]
    assert passed == Leaves(101, other)


def test_who_has_asked_nobody_gets_all_at_once():
    folder = ReplyFolder(OWN)
    one = [answer(100, 0, 7, b"a")]
    assert folder.take(100, CALLER, one) == [Leaves(100, one)]


def test_casts_whose_answers_never_come_are_forgotten():
    folder = ReplyFolder(OWN)
    for port in range(10_000):
        folder.expect(CALLER, port, 2)
    one = [answer(100, 0, 5, b"a")]
    assert folder.take(100, CALLER, one) == [Leaves(100, one)], "an old one: it goes alone"
    assert folder.take(100, CALLER, [answer(100, 0, 9_999, b"a")]) == []


moves = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3), st.integers(2, 4)),
        st.tuples(st.just("answer"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("error"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("batch"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("moment"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(moves)
def test_the_answers_of_each_process_come_once_and_in_order(steps):
    folder = ReplyFolder(OWN)
    sent: dict[int, list[bytes]] = {}
    leaving = []
    for number, (what, process, port) in enumerate(steps):
        if what == "ask":
            folder.expect(CALLER, process, port)
        elif what == "moment":
            leaving += folder.let_go().get(CALLER, [])
        else:
            kind = frames.ERROR if what == "error" else frames.REPLY
            payloads = [b"%d" % (number // 7), b"%d" % number][: 1 + (what == "batch")]
            sent.setdefault(process, []).extend(payloads)
            one = [answer(process, process, port, payload, kind) for payload in payloads]
            body = pack_batch(one) if what == "batch" else one[0]
            leaving += folder.take(process, CALLER, [body])
    leaving += folder.let_go().get(CALLER, [])
    got: dict[int, list[bytes]] = {}
    for process, _, payload in unfolded(leaving):
        got.setdefault(process, []).append(payload)
    assert got == sent


@pytest.mark.parametrize("cut", [1, 9, 20, 30, -1])
def test_half_a_fold_is_refused(cut):
    folder = ReplyFolder(OWN)
    folder.expect(CALLER, 7, 2)
    folder.take(100, CALLER, [answer(100, 0, 7, b"None")])
    [(_, [frame], _)] = folder.let_go()[CALLER]
    [message] = frames.open_frames([frame])
    whole = bytes(message.payload)
    assert unfold(whole)
    with pytest.raises(RemoteProtocolError):
        unfold(whole[:cut])
