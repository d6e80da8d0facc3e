"""What ranks print, at simulated times: grouped by rank, folded, soon, and nothing lost."""

import random
import re
from itertools import pairwise
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.errors.folding import listed_ranks, rank_label
from monarch_nb.core.text.lines import BURST, LineAssembler, Text, Throttle
from monarch_nb.core.text.stream_folder import (
    DISPLAY,
    DISPLAY_S,
    PARTIAL_S,
    QUIET_S,
    WINDOW_S,
    StreamFolder,
    Written,
    folded,
)

SOON_S = 0.2
RANKS = 4
HIDDEN = re.compile(r"\.\.\. (\d+) lines hidden \.\.\.")
NUMBERED = re.compile(r"(\d): (\d{12})")


def texts(effects):
    return "".join(text.text for text in effects)


class Screen:
    """A folder whose texts are taken when they are due, and when each line was shown."""

    def __init__(self, ranks=RANKS):
        self.folder = StreamFolder(range(ranks))
        self.shown = []

    def say(self, at, rank, *lines, stream="stdout"):
        self.until(at)
        self.folder.feed(rank, stream, "".join(f"{line}\n" for line in lines), at)
        if self.folder.is_ready:
            self._take(at)

    def until(self, at):
        while (due := self.folder.deadline) is not None and due <= at:
            self._take(due)

    def end(self, at=100.0):
        self.until(at)
        self._add(self.folder.flush(at), at)
        return self.lines

    def _take(self, at):
        before = self.folder.deadline
        self._add(self.folder.take(at), at)
        assert self.folder.deadline != before or before is None or before > at

    def _add(self, taken, at):
        self.shown += [(at, line) for line in texts(taken).splitlines()]

    @property
    def lines(self):
        return [line for _, line in self.shown]


def labels(lines):
    return [re.match(r"\[[^]]*\]", line)[0] for line in lines]


# --------------------------------------------------------------------------------- rank after rank


def test_a_burst_is_in_the_order_of_ranks_each_in_one_go():
    screen = Screen()
    for at, rank in (0.0, 2), (0.03, 0), (0.06, 3), (0.09, 1):
        screen.say(at, rank, f"a {rank}", f"b {rank}")
    assert screen.end() == [f"[{rank}] {one} {rank}" for rank in range(4) for one in "ab"]
    assert screen.shown[0][0] == pytest.approx(0.09 + QUIET_S)


def test_a_burst_of_all_ranks_is_whole_though_the_last_has_just_come():
    screen = Screen()
    for at, rank in (0.0, 1), (0.01, 2), (0.12, 3), (0.14, 0):
        screen.say(at, rank, "step", f"  loss {rank}")
    assert screen.end() == ["[0-3] step", *(f"[{rank}]   loss {rank}" for rank in range(4))]


def test_a_rank_that_says_nothing_is_not_waited_for_long():
    screen = Screen()
    screen.say(0.0, 3, "three")
    screen.say(0.1, 1, "one")
    assert screen.end() == ["[1] one", "[3] three"]
    assert screen.shown[0][0] == WINDOW_S


def test_steps_come_one_after_the_other_with_two_prints_a_step():
    screen = Screen()
    for step in range(3):
        for rank in (3, 1, 0, 2):
            screen.say(step + rank / 100, rank, f"step {step} of {rank}", f"  loss {rank}")
    found = screen.end()
    assert found == [
        line
        for step in range(3)
        for rank in range(4)
        for line in (f"[{rank}] step {step} of {rank}", f"[{rank}]   loss {rank}")
    ]


def test_what_all_have_said_is_shown_at_once_with_all_before_it():
    screen = Screen()
    for rank in (2, 0, 3):
        screen.say(rank / 1000, rank, f"hello {rank}", "together")
    screen.say(0.004, 1, "hello 1", "together", "own")
    assert screen.lines == [*(f"[{rank}] hello {rank}" for rank in range(4)), "[0-3] together"]
    screen.end()


def test_a_block_stays_whole():
    folder = StreamFolder(range(2))
    for rank in (1, 0):
        table = f"  a b\n0 1 2\n1 3 {rank}"
        folder.feed(rank, "stdout", f"before\n{table}\n", 0.0, [(7, 7 + len(table))])
    shown = texts(folder.take(0.0) + folder.take(1.0)).splitlines()
    assert shown == ["[0-1] before"] + [
        f"[{rank}] {line}" for rank in range(2) for line in ("  a b", "0 1 2", f"1 3 {rank}")
    ]


def test_figures_wait_for_those_of_ranks_before_theirs_and_lines_wait_for_no_figure():
    screen = Screen()
    screen.say(0.0, 3, "figure-3", stream=DISPLAY)
    screen.say(0.3, 0, "line")
    screen.say(0.5, 1, "figure-1", stream=DISPLAY)
    screen.say(0.6, 0, "figure-0", stream=DISPLAY)
    assert screen.lines == ["[0] line"]
    screen.say(0.9, 2, "figure-2", stream=DISPLAY)
    assert screen.end()[1:] == [f"[{rank}] figure-{rank}" for rank in range(4)]
    assert screen.shown[1][0] == pytest.approx(0.9 + QUIET_S)


def test_a_figure_of_one_rank_waits_a_second_and_not_when_it_says_more():
    screen = Screen()
    screen.say(0.0, 3, "figure", stream=DISPLAY)
    screen.say(2.0, 3, "figure", stream=DISPLAY)
    screen.say(2.1, 3, "saved")
    assert screen.end() == ["[3] figure", "[3] figure", "[3] saved"]
    assert [at for at, _ in screen.shown] == pytest.approx([DISPLAY_S, 2.25, 2.25])


# --------------------------------------------------------------------------------------- under load


@pytest.mark.parametrize("seed", range(20))
def test_equal_lines_fold_whatever_else_a_rank_prints_and_however_late_others_are(seed):
    rng = random.Random(seed)
    events = [(at / 1000, 3, f"debug {at}") for at in range(0, 6000, 7)]  # rank 3 never pauses
    for step in range(20):
        events += [(step * 0.3 + rng.uniform(0, 0.1), rank, f"step {step}") for rank in range(3)]
    screen = Screen()
    for at, rank, line in sorted(events):
        screen.say(at, rank, line)
    found = [line for line in screen.end() if "step" in line]
    assert found == [f"[0-2] step {step}" for step in range(20)]


@pytest.mark.parametrize("seed", range(20))
def test_bursts_are_in_the_order_of_ranks_though_processors_are_busy(seed):
    rng = random.Random(seed)
    events = [
        (step + rng.uniform(0, 0.1), rank, f"{step}: {line}")
        for step in range(10)
        for rank in range(RANKS)
        for line in ["x"]
    ]
    screen = Screen()
    for at, rank, line in sorted(events):
        screen.say(at, rank, line, f"{line} of {rank}")
    found = screen.end()
    for step in range(10):
        own = [line for line in found if line.startswith("[") and f" {step}: x of" in line]
        assert labels(own) == ["[0]", "[1]", "[2]", "[3]"]


ARRIVALS = st.lists(
    st.tuples(st.floats(0, 0.3), st.integers(0, 3), st.sampled_from(["a", "b", "c 1", "  d"])),
    min_size=1, max_size=40,
)  # fmt: skip


@given(ARRIVALS)
def test_no_line_waits_longer_than_the_window(arrivals):
    screen, now, said = Screen(), 0.0, {rank: [] for rank in range(4)}
    for pause, rank, line in arrivals:
        now += pause
        screen.say(now, rank, line)
        said[rank].append(now)
    screen.end()
    shown = {rank: [] for rank in range(4)}
    for at, line in screen.shown:
        for rank in listed_ranks(line[1:].partition("]")[0]):
            shown[rank].append(at)
    for rank, times in said.items():
        waited = [at - came for came, at in zip(times, shown[rank], strict=True)]
        assert all(-1e-9 <= each <= WINDOW_S + 1e-9 < SOON_S for each in waited)


@given(ARRIVALS)
@settings(max_examples=50)
def test_a_rank_that_prints_on_and_on_delays_no_other(arrivals):
    screen, now = Screen(5), 0.0
    for pause, rank, line in arrivals:
        for tick in range(int(now * 50), int((now + pause) * 50)):
            screen.say(tick / 50, 4, f"tick {tick}")
        now += pause
        screen.say(now, rank, f"{line} at {now}")
    screen.end()
    for at, line in screen.shown:
        if found := re.search(r"at ([\d.e-]+)$", line):
            assert at - float(found[1]) <= WINDOW_S + 1e-9


# ------------------------------------------------------------------------------------------ folding


def test_equal_lines_of_all_ranks_become_one_at_once():
    folder = StreamFolder(range(3))
    folder.feed(0, "stdout", "step 1\n", 0.0)
    folder.feed(1, "stdout", "step 1\n", 0.001)
    assert not folder.is_ready
    folder.feed(2, "stdout", "step 1\n", 0.002)
    assert folder.is_ready
    assert folder.take(0.002) == [Text("stdout", "[0-2] step 1\n")]
    assert folder.deadline is None or folder.take(folder.deadline) == []


def test_a_line_waits_for_its_equals_one_window():
    folder = StreamFolder(range(3))
    folder.feed(0, "stdout", "a\n", 0.0)
    folder.feed(2, "stdout", "a\n", 0.01)
    assert folder.deadline == WINDOW_S
    assert folder.take(WINDOW_S / 2) == []
    assert texts(folder.take(WINDOW_S)) == "[0,2] a\n"
    folder.feed(1, "stdout", "a\n", 1.0)
    assert texts(folder.flush(2.0)) == "[1] a\n"


def test_ranks_that_have_finished_are_not_waited_for():
    folder = StreamFolder(range(4))
    for rank in (1, 2, 3):
        folder.finish(rank, 0.0)
    folder.feed(0, "stdout", "only rank 0\n", 0.0)
    assert texts(folder.take(0.0)) == "[0] only rank 0\n"
    folder = StreamFolder(range(2))
    folder.feed(0, "stdout", "a\nb\n", 0.0)
    folder.finish(1, 0.0)
    assert texts(folder.take(0.0)) == "[0] a\n[0] b\n"


def test_a_line_of_a_rank_that_has_finished_still_waits_for_the_others():
    folder = StreamFolder(range(3))
    folder.feed(0, "stdout", "a\n", 0.0)
    folder.finish(0, 0.0)
    folder.feed(1, "stdout", "a\n", 0.0)
    assert folder.take(0.0) == []
    folder.feed(2, "stdout", "a\n", 0.0)
    assert texts(folder.take(0.0)) == "[0-2] a\n"


def test_ranks_that_have_finished_keep_their_place():
    folder = StreamFolder(range(3))
    for rank in (2, 0):
        folder.feed(rank, "stdout", f"said by {rank}\n", 0.0)
        folder.finish(rank, 0.0)
    folder.feed(1, "stdout", "said by 1\n", 0.1)
    assert texts(folder.take(0.1)) == "".join(f"[{rank}] said by {rank}\n" for rank in range(3))


def test_lines_that_differ_do_not_keep_later_ones_from_folding():
    folder = StreamFolder(range(2))
    folder.feed(0, "stdout", "step 1\nloss 0.1\nstep 2\n", 0.0)
    folder.feed(1, "stdout", "step 1\nloss 0.2\nstep 2\n", 0.0)
    shown = texts(folder.take(0.0))
    assert shown == "[0-1] step 1\n[0] loss 0.1\n[1] loss 0.2\n[0-1] step 2\n"


def test_crossed_lines_keep_each_ranks_order():
    folder = StreamFolder(range(2))
    folder.feed(0, "stdout", "a\nb\n", 0.0)
    folder.feed(1, "stdout", "b\na\n", 0.0)
    lines = texts(folder.take(0.0) + folder.flush(1.0)).splitlines()
    assert sorted(lines) in (["[0-1] b", "[0] a", "[1] a"], ["[0-1] a", "[0] b", "[1] b"])


def test_the_streams_of_a_rank_stay_in_order():
    folder = StreamFolder([0], total=2)
    for stream, line in ("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"):
        folder.feed(0, stream, line, 0.0)
    assert folder.take(0.0) == [
        Text("stdout", "[0] a\n"), Text("stderr", "[0] b\n"), Text("stdout", "[0] c\n")
    ]  # fmt: skip


# ---------------------------------------------------------------------------- lines without an end


def test_a_line_without_end_is_shown_after_a_while_and_goes_on():
    folder = StreamFolder([0], total=2)
    folder.feed(0, "stdout", "loading...", 0.0)
    assert folder.deadline == PARTIAL_S
    assert texts(folder.take(PARTIAL_S)) == "[0] loading...\n"
    folder.feed(0, "stdout", "\nnext\n", 1.0)
    assert texts(folder.take(1.0)) == "[0] next\n"
    folder.feed(0, "stdout", "end", 2.0)
    folder.finish(0, 2.0)
    assert texts(folder.take(2.0)) == "[0] end\n"


def test_progress_is_drawn_over_and_ends_as_a_line():
    folder = StreamFolder(range(2))
    for now, state in ((0.0, 10), (0.5, 20), (1.0, 30)):
        for rank in range(2):
            folder.feed(rank, "stderr", f"\r{state}%", now)
        assert folder.deadline <= now + 0.3
        drawn = folder.take(now + 0.25)
        assert texts(drawn) == ("\r" if now else "") + f"[0-1] {state}%"
    folder.feed(0, "stdout", "hello\n", 1.5)
    over = folder.take(1.7)
    assert over[:2] == [Text("stderr", "\r         \r"), Text("stdout", "[0] hello\n")]
    for rank in range(2):
        folder.feed(rank, "stderr", "\r100%\n", 2.0)
    assert texts(folder.take(2.0)).endswith("[0-1] 100%\n")


def test_a_mesh_of_one_rank_passes_text_as_it_is():
    folder = StreamFolder([0])
    folder.feed(0, "stdout", "a", 0.0)
    folder.feed(0, "stderr", "\r10%\r20%", 0.0)
    assert folder.take(0.0) == [Text("stdout", "a"), Text("stderr", "\r10%\r20%")]
    assert folder.deadline is None
    folder.finish(0, 0.0)
    assert folder.flush(0.0) == []


# ------------------------------------------------------------------------------------------- floods


def waiting_of(folder):
    """How many lines of rank 0 wait for other ranks."""
    return len(folder._ranks[0].waiting)


def test_a_flood_is_bounded_and_says_so():
    folder, shown = StreamFolder(range(2)), []
    for start in range(0, 50_000, 500):
        chunk = "".join(f"line {i}\n" for i in range(start, start + 500))
        for rank in range(2):
            folder.feed(rank, "stdout", chunk, 0.0)
        shown += folder.take(0.0)
    assert not folder._equals, "what was shown is forgotten"
    shown += folder.flush(0.0)
    text = texts(shown)
    assert len(text) < 2 * BURST
    assert "lines hidden" in text
    assert text.endswith("[0-1] line 49999\n")


@pytest.mark.parametrize("total, size", [(1, 80_000), (3, 80_000), (3, 100_003)])
@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.4])
def test_every_line_of_a_flood_is_shown_or_counted(total, size, pause_s):
    """Also where chunks tear lines. Ranks say different lines, so that none is folded; after a
    pause lines are shown again."""
    folder, shown, now = StreamFolder(range(total)), [], 0.0
    floods = ["".join(f"{rank}: {i:012}\n" for i in range(60_000)) for rank in range(total)]
    for start in range(0, len(floods[0]), size):
        for rank, flood in enumerate(floods):
            folder.feed(rank, "stdout", flood[start : start + size], now)
            shown += folder.take(now)
        now += pause_s
    lines = texts([*shown, *folder.flush(now)]).splitlines()
    hidden = sum(int(found[1]) for line in lines if (found := HIDDEN.fullmatch(line)))
    said = [(int(found[1]), int(found[2])) for line in lines if (found := NUMBERED.search(line))]
    assert hidden + len(said) == total * 60_000
    for rank in range(total):
        numbers = [number for said_by, number in said if said_by == rank]
        assert numbers == sorted(set(numbers))
    assert said[-1] == (total - 1, 59_999)


def test_a_rank_that_nobody_joins_does_not_fill_the_memory():
    folder = StreamFolder(range(2))
    for start in range(0, 100_000, 500):
        folder.feed(0, "stdout", "".join(f"{i}\n" for i in range(start, start + 500)), 0.0)
    assert waiting_of(folder) <= 5_000


EVENTS = st.lists(
    st.tuples(
        st.integers(0, RANKS - 1),
        st.sampled_from(["stdout", "stderr"]),
        st.text("abc\n", max_size=8),
        st.sampled_from([0.0, 0.0, 0.005, 0.03, 0.2]),
        st.sampled_from(["feed", "feed", "feed", "take", "finish"]),
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
        if kind == "take":
            out += folder.take(now)
        else:
            assembler = assemblers.setdefault((rank, stream), LineAssembler())
            expected[rank] += [(stream, line) for line in assembler.feed(text)]
            folder.feed(rank, stream, text, now)
        if kind == "finish":
            expected[rank] += ends(assemblers, rank)
            folder.finish(rank, now)
    out += folder.flush(now)
    for rank in expected:
        expected[rank] += ends(assemblers, rank)
    seen = {rank: [] for rank in range(RANKS)}
    for text in out:
        for line in text.text.splitlines():
            label, _, rest = line.partition(" ")
            for rank in listed_ranks(label.strip("[]")):
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
    for line in lines:
        for rank in range(total):
            folder.feed(rank, "stdout", f"{line}\n", 0.0)
    label = rank_label(range(total))
    assert texts(folder.take(0.0)) == "".join(f"{label} {line}\n" for line in lines)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_memory_is_that_of_a_window(pauses):
    folder, now, printed = StreamFolder(range(2)), 0.0, []
    for number, pause in enumerate(pauses):
        now += pause
        folder.feed(0, "stdout", f"{number}\n", now)
        printed.append(now)
        folder.take(now)
        waiting = waiting_of(folder)
        assert all(now - since < WINDOW_S + 1e-9 for since in printed[len(printed) - waiting :])
    assert all(later >= earlier for earlier, later in pairwise(printed))


# --------------------------------------------------------------------------- what came before


def test_of_what_came_before_only_what_came_together_is_folded():
    """Of each rank the last lines: those of rank 1 begin later, as it had more to say."""
    of_0 = [(0, 1.0), (0, 5.0), (0, 9.0)]
    came = [Written(rank, "same", at) for rank, at in [*of_0, (1, 5.01), (1, 9.02)]]
    assert folded(came, 2, Throttle()) == "[0] same\n[0-1] same\n[0-1] same\n"
    assert folded([each._replace(at=None) for each in came], 2, Throttle()) == (
        "[0-1] same\n[0-1] same\n[0] same\n"
    )


def test_what_came_before_is_in_the_order_in_which_it_came():
    came = [Written(0, "third", 3.0), Written(1, "first", 1.0), Written(1, "second", 2.0)]
    assert folded(came, 2, Throttle()) == "[1] first\n[1] second\n[0] third\n"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0, 2) | st.none())))
def test_every_line_that_came_before_is_there_in_its_ranks_order(lines):
    came = [Written(*line) for line in lines]
    found = {rank: [] for rank in range(RANKS)}
    for line in folded(came, RANKS, Throttle(burst=float("inf"))).splitlines():
        label, _, text = line.partition(" ")
        for rank in listed_ranks(label.strip("[]")):
            found[rank].append(text)
    assert found == {
        rank: [each.text for each in came if each.rank == rank] for rank in range(RANKS)
    }
