"""What a line of output says of itself."""

import pytest

from monarch_nb.core.text.levels import MAX_LINE, levels, plain_lines

LEVELS = [
    ("WARNING:root:slow", "warning"),
    ("WARN low memory", "warning"),
    ("ERROR:trainer:bad batch", "error"),
    ("CRITICAL: gone", "error"),
    ("2026-11-22 08:00:01,123 - trainer - ERROR - lost", "error"),
    ("2026-11-22 08:00:01,123 trainer WARNING lost", ""),
    ("[2026-11-22 08:00:01] [WARNING] [engine.py:12] x", "warning"),
    ("[ERROR] x", "error"),
    ("08:00:01 | ERROR | x", "error"),
    ("train.py:12: UserWarning: this is slow", "warning"),
    ("/a b/train.py:12: FutureWarning: old", "warning"),
    ("Fatal Python error: Segmentation fault", "error"),
    ("INFO:root:no ERROR here", ""),
    ("errors: 0", ""),
    ("ERRORS 0", ""),
    ("an ERROR in the middle", ""),
    ("Epoch 3: 100%|####| 5/5 [00:01<00:00]", ""),
    ("loss 0.3, error 0.1", ""),
    ("", ""),
]


@pytest.mark.parametrize("line, level", LEVELS)
def test_level(line, level):
    assert list(levels([line])) == [level]


def test_a_traceback_is_an_error_to_its_last_line():
    lines = ["before", "Traceback (most recent call last):", '  File "a.py", line 1, in f',
             "    1 / 0", "ZeroDivisionError: division by zero", "after"]  # fmt: skip
    assert list(levels(lines)) == ["", "error", "error", "error", "error", ""]


@pytest.mark.parametrize("text, lines", [
    ("a\nb\n", ["a", "b"]),
    ("a\n\n", ["a", ""]),
    ("\x1b[1;31mred\x1b[0m\tx\n", ["red\tx"]),
    ("5 %\r10 %\r\n", ["10 %"]),
    ("dos\r\nlines\r\n", ["dos", "lines"]),
    ("\x1b]0;title\x07shown\n", ["shown"]),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
    ("a\x00b\x08c\x9bm\x7f\n", ["abc"]),
    ("\ud800\n", ["\\ud800"]),
])  # fmt: skip
def test_plain_lines(text, lines):
    assert plain_lines(text) == lines


def test_a_long_line_is_cut_with_a_note():
    [line] = plain_lines("x" * (MAX_LINE + 7) + "\n")
    assert line == "x" * MAX_LINE + "... [7 more characters]"
