"""The last lines of all ranks: bounded, numbered, and what is left out is counted."""

import re
import threading

import pytest

from monarch_nb.control.output.tail import MAX_CHARS, MAX_LINES, Tail
from tests.support import eventually


def texts(lines) -> list[str]:
    return [line.text for line in lines]


def test_lines_come_in_the_order_in_which_they_ended():
    tail = Tail()
    tail.feed("m", 0, "stdout", "zero, ")
    tail.feed("m", 1, "stdout", "one\n")
    tail.feed("m", 0, "stderr", "error\n")
    tail.feed("m", 0, "stdout", "on\nand ")
    found = tail.last(10)
    assert texts(found) == ["one", "error", "zero, on"]
    assert [(line.seq, line.rank, line.stream) for line in found] == [
        (1, 1, "stdout"), (2, 0, "stderr"), (3, 0, "stdout"),
    ]  # fmt: skip
    tail.end_lines("m", 0)
    assert texts(tail.last(1)) == ["and "]


def test_a_rank_that_ends_ends_its_own_lines_only():
    tail = Tail()
    tail.feed("m", 0, "stdout", "a")
    tail.feed("m", 1, "stdout", "b")
    tail.end_lines("m", 1)
    assert texts(tail.last(10)) == ["b"]


def test_what_was_overwritten_is_not_shown():
    tail = Tail()
    for percent in range(100):
        tail.feed("m", 0, "stdout", f"\r{percent} %")
    tail.feed("m", 0, "stdout", "\n")
    assert texts(tail.last(10)) == ["99 %"]


def test_a_line_without_an_end_stays_small():
    tail = Tail()
    for _ in range(100):
        tail.feed("m", 0, "stdout", "x" * 100_000)
    assert sum(map(len, tail._open.values())) <= 20_000
    tail.feed("m", 0, "stdout", "\rdone\n")
    assert texts(tail.last(1)) == ["done"]


def test_selection_pattern_level_and_before():
    tail = Tail()
    for number in range(6):
        tail.feed("ab"[number % 2], number, "stdout", f"ERROR {number}\nfine {number}\n")
    tail.feed("a", 0, "stderr", "x.py:1: UserWarning: w\n")
    assert texts(tail.last(2, "a")) == ["fine 4", "x.py:1: UserWarning: w"]
    assert texts(tail.last(9, "a", [2])) == ["ERROR 2", "fine 2"]
    assert texts(tail.last(9, pattern=re.compile("[35]$"))) == [
        "ERROR 3", "fine 3", "ERROR 5", "fine 5",
    ]  # fmt: skip
    assert texts(tail.last(9, "a", level="error")) == ["ERROR 0", "ERROR 2", "ERROR 4"]
    assert texts(tail.last(1, "a", level="warning")) == ["x.py:1: UserWarning: w"]
    first = tail.last(9, "a", level="error")[0]
    assert texts(tail.last(2, before=first.seq + 3)) == ["fine 0", "ERROR 1"]


def test_a_follower_sees_each_line_once_or_is_told_how_many_it_missed():
    tail, seen, missed, seq = Tail(), [], 0, 0
    for round_ in range(200):
        for rank in range(3):
            tail.feed("m", rank, "stdout", "".join(f"{round_} {n}\n" for n in range(rank * 9)))
        if round_ % 7 == 0:
            lines, skipped, seq = tail.after(seq, "m", [1, 2], limit=50)
            seen += lines
            missed += skipped
    lines, skipped, _ = tail.after(seq, "m", [1, 2])
    seen += lines
    numbers = [line.seq for line in seen]
    assert numbers == sorted(set(numbers))
    assert {line.rank for line in seen} == {1, 2}
    assert len(seen) + missed + skipped == 200 * (9 + 18)
    assert tail.after(tail.seq) == ([], 0, tail.seq)


def test_a_follower_of_a_flood_counts_each_line_once():
    """Lines that come while it asks, from another thread, are neither counted twice nor lost."""
    tail, seen, missed, seq = Tail(), 0, 0, 0
    flood = threading.Thread(
        target=lambda: [tail.feed("m", 0, "stdout", f"{n}\n" * 3) for n in range(20_000)]
    )
    flood.start()
    while flood.is_alive() or seq < tail.seq:
        lines, skipped, seq = tail.after(seq, limit=50)
        seen, missed = seen + len(lines), missed + skipped
    assert seen + missed == 60_000


def test_what_has_fallen_out_is_counted_by_rank():
    tail = Tail()
    for _ in range(300):
        tail.feed("m", 0, "stdout", "zero\n" * 100)
        tail.feed("m", 1, "stdout", "one\n" * 10)
    lines, skipped, _ = tail.after(0, "m", [1], limit=100_000)
    assert len(lines) + skipped == 3_000
    lines, skipped, _ = tail.after(0, limit=100_000)
    assert len(lines) + skipped == 33_000
    assert MAX_LINES <= len(lines) < MAX_LINES + 100


def pieces(tail):
    return tail._pieces


def kept_lines(tail):
    return sum(piece.count for piece in pieces(tail))


@pytest.mark.parametrize("length, lines", [(1, 300), (1_000, 300), (100_000, 3)])
def test_memory_is_bounded(length, lines):
    tail, line = Tail(), "x" * length + "\n"
    for _ in range(200):
        tail.feed("m", 0, "stdout", line * lines)
    tail.feed("m", 0, "stdout", "last\n")
    kept = sum(len(piece.text) for piece in pieces(tail))
    assert kept <= MAX_CHARS
    assert kept_lines(tail) <= MAX_LINES + 300
    assert tail._lines == kept_lines(tail)
    assert tail.seq == 200 * lines + 1
    assert texts(tail.last(1)) == ["last"]


def test_one_piece_that_is_too_large_is_cut():
    tail = Tail()
    tail.feed("m", 0, "stdout", "x\n" * 1_999_990 + "".join(f"{n}\n" for n in range(10)))
    lines, skipped, _ = tail.after(0, limit=10)
    assert texts(lines) == list("0123456789")
    assert lines[-1].seq == 2_000_000
    assert skipped == 1_999_990
    assert kept_lines(tail) <= MAX_LINES


# with ranks


@pytest.mark.slow
def test_what_ranks_print_is_there(mesh):
    made = mesh(2)
    made.cell("import sys, os\nprint('out', rank); print('Traceback', file=sys.stderr)\n"
              "_ = os.write(1, b'from C\\n')")  # fmt: skip
    tail = made.client.tail

    def found() -> set[tuple[int, str, str]]:
        return {(line.rank, line.stream, line.text) for line in tail.last(100, made.name)}

    wanted = {(rank, stream, text) for rank in range(2) for stream, text in (
        ("stdout", f"out {rank}"), ("stderr", "Traceback"), ("stdout", "from C"),
    )}  # fmt: skip
    eventually(lambda: found() == wanted, what=lambda: str(found()))


@pytest.mark.fault
def test_what_a_rank_had_begun_to_print_when_it_died_is_there(mesh):
    made = mesh(2)
    made.cell("import os\nos.write(1, b'not the end'); os._exit(3)", gpus=1)
    tail = made.client.tail
    eventually(lambda: texts(tail.last(10, made.name, [1])) == ["not the end"])
