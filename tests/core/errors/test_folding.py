"""Folding: what ranks have in common is said once, and nothing is lost or reordered."""

import re
from itertools import pairwise
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.core.errors.folding import (
    fold_errors,
    fold_outputs,
    format_errors,
    rank_label,
    rank_words,
)
from monarch_nb.core.errors.records import ErrorRecord, FrameRecord
from monarch_nb.core.text.lines import BURST, MAX_LINE, LineAssembler, Text, Throttle
from monarch_nb.core.text.stream_folder import PARTIAL_S, WINDOW_S, StreamFolder


def expand(label):
    """`[0-2,5]` as a set of ranks."""
    ranks = set()
    for part in label.strip("[]").split(","):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks


# -------------------------------------------------------------------------------- labels and groups


@pytest.mark.parametrize("ranks, label", [
    ([0, 1, 2, 3], "[0-3]"), ([3, 0, 2], "[0,2-3]"), ([7], "[7]"), ([0, 1, 5, 6, 9], "[0-1,5-6,9]"),
])  # fmt: skip
def test_labels(ranks, label):
    assert rank_label(ranks) == label


def test_a_mesh_of_one_rank_has_no_labels():
    assert rank_label([0], total=1) == ""
    assert fold_outputs({0: "x"}, total=1)[0].label == ""


def test_scattered_ranks_are_counted():
    assert rank_label(range(0, 64, 2)).endswith(",... 32 in all]")


@given(st.sets(st.integers(0, 12), min_size=1))
def test_labels_name_exactly_the_ranks(ranks):
    assert expand(rank_label(ranks)) == ranks


def test_equal_outputs_form_groups_in_order_of_rank():
    groups = fold_outputs({3: "b", 0: "a", 2: "b", 1: "b"})
    assert [(group.ranks, group.label) for group in groups] == [((0,), "[0]"), ((1, 2, 3), "[1-3]")]


# ------------------------------------------------------------------------------------------- errors


def error(message, line=1, name="ValueError"):
    return ErrorRecord(name, message, frames=(FrameRecord("<cell>", line, "f", "raise x"),))


def test_equal_errors_are_told_once():
    groups = fold_errors({rank: error("bad value") for rank in range(4)})
    assert format_errors(groups) == [
        "ranks 0-3: ValueError: bad value",
        "Traceback (most recent call last):",
        '  File "<cell>", line 1, in f',
        "    raise x",
        "ValueError: bad value",
    ]


def test_messages_that_differ_are_listed():
    groups = fold_errors({0: error("a"), 1: error("b\nc"), 2: error("a")})
    assert format_errors(groups)[0] == "ranks 0-2: ValueError, 2 different messages"
    assert format_errors(groups)[-5:] == [
        "ValueError: a",
        "The messages differ:",
        "  ranks 0,2: a",
        "  rank 1: b",
        "    c",
    ]


def test_errors_of_different_places_stay_apart():
    groups = fold_errors({0: error("a"), 1: error("a", line=2), 2: error("a", name="KeyError")})
    assert [group.ranks for group in groups] == [(0,), (1,), (2,)]
    text = format_errors(groups)
    assert [line for line in text if line.startswith("rank ")] == [
        "rank 0: ValueError: a", "rank 1: ValueError: a", "rank 2: KeyError: a",
    ]  # fmt: skip
    assert text.count("") == 2


def test_many_messages_are_cut_short():
    text = format_errors(fold_errors({rank: error(f"{rank}" * 1000) for rank in range(100)}))
    assert text[-1] == "  ... 84 more messages"
    assert len(text) < 30


def test_a_mesh_of_one_rank_shows_the_traceback_alone():
    assert format_errors(fold_errors({0: error("a")}), total=1) == error("a").format()
    assert rank_words([3]) == "rank 3"


# -------------------------------------------------------------------------------------------- lines


@given(st.lists(st.text("ab\n\r", max_size=4), max_size=12))
def test_lines_do_not_depend_on_the_chunks(chunks):
    whole, split = LineAssembler(), LineAssembler()
    lines = [line for chunk in chunks for line in split.feed(chunk)]
    assert whole.feed("".join(chunks)) == lines
    assert whole.pending == split.pending == whole.take() == split.take()


def test_a_carriage_return_takes_the_line_back():
    lines = LineAssembler()
    assert lines.feed("10%\r20%\r") == []
    assert lines.pending == "20%"
    assert lines.feed("30%\rdone\nwin\r\nx") == ["done", "win"]
    assert lines.take() == "x"


def test_a_line_without_end_stays_small():
    lines = LineAssembler()
    for _ in range(1000):
        assert lines.feed("x" * 1000) == []
    assert len(lines.pending) == MAX_LINE
    (line,) = lines.feed("\n")
    assert line.endswith("... [990000 more characters]")


def test_the_throttle_hides_counts_and_shows_the_last_lines():
    throttle = Throttle()
    shown = [text for i in range(20_000) for text in throttle.show("stdout", f"{i}\n", now=0.0)]
    assert len(shown) < BURST / 80
    end = throttle.close()
    hidden = int(re.fullmatch(r"\.\.\. (\d+) lines hidden \.\.\.\n", end[0].text)[1])
    assert len(shown) + hidden + len(end) - 1 == 20_000
    assert end[-1].text == "19999\n"


def test_the_throttle_shows_again_after_a_pause():
    throttle = Throttle(burst=1000, refill_per_s=1000)
    for i in range(100):
        throttle.show("stdout", f"{i}\n", now=0.0)
    note, line = throttle.show("stdout", "later\n", now=5.0)
    assert note.text.endswith("lines hidden ...\n")
    assert line.text == "later\n"


# ------------------------------------------------------------------------------------------ streams


def texts(effects):
    return "".join(text.text for text in effects)


def test_equal_lines_of_all_ranks_become_one_at_once():
    folder = StreamFolder(range(3))
    assert folder.feed(0, "stdout", "step 1\n", 0.0) == []
    assert folder.feed(1, "stdout", "step 1\n", 0.001) == []
    assert folder.feed(2, "stdout", "step 1\n", 0.002) == [Text("stdout", "[0-2] step 1\n")]
    assert folder.deadline is None


def test_a_line_waits_for_its_equals_one_window():
    folder = StreamFolder(range(3))
    folder.feed(0, "stdout", "a\n", 0.0)
    folder.feed(2, "stdout", "a\n", 0.01)
    assert folder.deadline == WINDOW_S
    assert folder.tick(WINDOW_S / 2) == []
    assert texts(folder.tick(WINDOW_S)) == "[0,2] a\n"
    assert texts(folder.feed(1, "stdout", "a\n", 1.0) + folder.flush(2.0)) == "[1] a\n"


def test_ranks_that_have_finished_are_not_waited_for():
    folder = StreamFolder(range(4))
    for rank in (1, 2, 3):
        assert folder.finish(rank, 0.0) == []
    assert texts(folder.feed(0, "stdout", "only rank 0\n", 0.0)) == "[0] only rank 0\n"
    folder = StreamFolder(range(2))
    folder.feed(0, "stdout", "a\nb\n", 0.0)
    assert texts(folder.finish(1, 0.0)) == "[0] a\n[0] b\n"


def test_a_line_of_a_rank_that_has_finished_still_waits_for_the_others():
    folder = StreamFolder(range(3))
    folder.feed(0, "stdout", "a\n", 0.0)
    assert folder.finish(0, 0.0) == []
    assert folder.feed(1, "stdout", "a\n", 0.0) == []
    assert texts(folder.feed(2, "stdout", "a\n", 0.0)) == "[0-2] a\n"


def test_lines_that_differ_do_not_keep_later_ones_from_folding():
    folder = StreamFolder(range(2))
    folder.feed(0, "stdout", "step 1\nloss 0.1\nstep 2\n", 0.0)
    shown = folder.feed(1, "stdout", "step 1\nloss 0.2\nstep 2\n", 0.0)
    assert texts(shown) == "[0-1] step 1\n[0] loss 0.1\n[1] loss 0.2\n[0-1] step 2\n"


def test_crossed_lines_keep_each_ranks_order():
    folder = StreamFolder(range(2))
    out = folder.feed(0, "stdout", "a\nb\n", 0.0) + folder.feed(1, "stdout", "b\na\n", 0.0)
    lines = texts(out + folder.flush(1.0)).splitlines()
    assert sorted(lines) in (["[0-1] b", "[0] a", "[1] a"], ["[0-1] a", "[0] b", "[1] b"])


def test_the_streams_of_a_rank_stay_in_order():
    folder = StreamFolder([0], total=2)
    out = folder.feed(0, "stdout", "a\n", 0.0) + folder.feed(0, "stderr", "b\n", 0.0)
    out += folder.feed(0, "stdout", "c\n", 0.0)
    assert out == [Text("stdout", "[0] a\n"), Text("stderr", "[0] b\n"), Text("stdout", "[0] c\n")]


def test_a_line_without_end_is_shown_after_a_while_and_goes_on():
    folder = StreamFolder([0], total=2)
    assert folder.feed(0, "stdout", "loading...", 0.0) == []
    assert folder.deadline == PARTIAL_S
    assert texts(folder.tick(PARTIAL_S)) == "[0] loading...\n"
    assert texts(folder.feed(0, "stdout", "\nnext\n", 1.0)) == "[0] next\n"
    folder.feed(0, "stdout", "end", 2.0)
    assert texts(folder.finish(0, 2.0)) == "[0] end\n"


def test_progress_is_drawn_over_and_ends_as_a_line():
    folder = StreamFolder(range(2))
    for now, state in ((0.0, 10), (0.5, 20), (1.0, 30)):
        for rank in range(2):
            assert folder.feed(rank, "stderr", f"\r{state}%", now) == []
        assert folder.deadline <= now + 0.3
        drawn = folder.tick(now + 0.25)
        assert texts(drawn) == ("\r" if now else "") + f"[0-1] {state}%"
    over = folder.feed(0, "stdout", "hello\n", 1.5) + folder.tick(1.6)
    assert over[:2] == [Text("stderr", "\r         \r"), Text("stdout", "[0] hello\n")]
    out = folder.feed(0, "stderr", "\r100%\n", 2.0) + folder.feed(1, "stderr", "\r100%\n", 2.0)
    assert texts(out).endswith("[0-1] 100%\n")


def test_a_mesh_of_one_rank_passes_text_as_it_is():
    folder = StreamFolder([0])
    assert folder.feed(0, "stdout", "a", 0.0) == [Text("stdout", "a")]
    assert folder.feed(0, "stderr", "\r10%\r20%", 0.0) == [Text("stderr", "\r10%\r20%")]
    assert folder.deadline is None
    assert folder.finish(0, 0.0) == folder.flush(0.0) == []


def test_a_flood_is_bounded_and_says_so():
    folder, shown = StreamFolder(range(2)), []
    for start in range(0, 50_000, 500):
        chunk = "".join(f"line {i}\n" for i in range(start, start + 500))
        shown += folder.feed(0, "stdout", chunk, 0.0) + folder.feed(1, "stdout", chunk, 0.0)
    assert not folder._order, "what was shown is forgotten"
    shown += folder.flush(0.0)
    text = texts(shown)
    assert len(text) < 2 * BURST
    assert "lines hidden ..." in text
    assert text.endswith("[0-1] line 49999\n")


def waiting_of(folder):
    """How many lines of rank 0 wait for other ranks."""
    return len(folder._queues[0])


def test_a_rank_that_nobody_joins_does_not_fill_the_memory():
    folder = StreamFolder(range(2))
    for start in range(0, 100_000, 500):
        folder.feed(0, "stdout", "".join(f"{i}\n" for i in range(start, start + 500)), 0.0)
    assert waiting_of(folder) <= 5_000


RANKS = 4
EVENTS = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from(["stdout", "stderr"]),
        st.text("abc\n", max_size=8),
        st.sampled_from([0.0, 0.0, 0.005, 0.03]),
        st.sampled_from(["feed", "feed", "feed", "tick", "finish"]),
    ),
    max_size=40,
)


@given(EVENTS)
def test_every_line_of_every_rank_is_shown_once_and_in_order(events):
    folder, now, out = StreamFolder(range(RANKS)), 0.0, []
    expected = {rank: [] for rank in range(RANKS)}
    assemblers = {}
    for rank, stream, text, pause, kind in events:
        now += pause
        if kind == "tick":
            out += folder.tick(now)
        else:
            assembler = assemblers.setdefault((rank, stream), LineAssembler())
            expected[rank] += [(stream, line) for line in assembler.feed(text)]
            out += folder.feed(rank, stream, text, now)
        if kind == "finish":
            expected[rank] += ends(assemblers, rank)
            out += folder.finish(rank, now)
    out += folder.flush(now)
    for rank in expected:
        expected[rank] += ends(assemblers, rank)
    seen = {rank: [] for rank in range(RANKS)}
    for text in out:
        for line in text.text.splitlines():
            label, _, rest = line.partition(" ")
            for rank in expand(label):
                seen[rank].append((text.stream, rest))
    for rank in range(RANKS):  # unfinished lines of the two streams have no order between them
        assert sorted(seen[rank]) == sorted(expected[rank])
        for stream in ("stdout", "stderr"):
            assert [x for x in seen[rank] if x[0] == stream] == [
                x for x in expected[rank] if x[0] == stream
            ]


def ends(assemblers, rank):
    """The unfinished lines of a rank, which finishing completes."""
    return [
        (stream, assembler.take())
        for (one, stream), assembler in sorted(assemblers.items(), key=itemgetter(0))
        if one == rank and assembler
    ]


@given(st.integers(2, 6), st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=20))
def test_ranks_that_print_the_same_are_folded_whole(total, lines):
    folder = StreamFolder(range(total))
    out = []
    for line in lines:
        for rank in range(total):
            out += folder.feed(rank, "stdout", f"{line}\n", 0.0)
    label = rank_label(range(total))
    assert texts(out) == "".join(f"{label} {line}\n" for line in lines)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_nothing_waits_longer_than_the_window(pauses):
    folder, now, printed = StreamFolder(range(2)), 0.0, []
    for number, pause in enumerate(pauses):
        now += pause
        folder.feed(0, "stdout", f"{number}\n", now)
        printed.append(now)
        folder.tick(now)
        waiting = waiting_of(folder)
        assert all(now - since < WINDOW_S + 1e-9 for since in printed[len(printed) - waiting :])
    assert all(later >= earlier for earlier, later in pairwise(printed))
