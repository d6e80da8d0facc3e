"""Records of errors: whatever an exception does, a small and readable record comes of it."""

import json
import linecache
from types import TracebackType

import pytest

from monarch_nb.core.errors import records
from monarch_nb.core.errors.records import ErrorRecord, FrameRecord, is_internal
from monarch_nb.errors import RemoteProtocolError

CELL = """\
def fail(x):
    return 1 + x / 0

def deep(n):
    return deep(n - 1) if n else fail(1)

def caused():
    try:
        fail(2)
    except ZeroDivisionError as error:
        raise KeyError("lost") from error

def during():
    try:
        fail(2)
    except ZeroDivisionError:
        raise KeyError("lost")
"""


@pytest.fixture
def cell():
    """The functions of a notebook's cell, as a rank runs them."""
    linecache.cache["<cell>"] = len(CELL), None, CELL.splitlines(keepends=True), "<cell>"
    names = {}
    exec(compile(CELL, "<cell>", "exec"), names)
    yield names
    del linecache.cache["<cell>"]


def record_of(action, *args, hide=lambda name: name != "<cell>"):
    """The record of what `action` raises, after a journey as JSON."""
    with pytest.raises(BaseException) as caught:
        action(*args)
    record = ErrorRecord.from_exception(caught.value, hide)
    assert ErrorRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    return record


def raised(error):
    def action():
        raise error

    return record_of(action)


# ---------------------------------------------------------------------------------------- rendering


def test_a_traceback_reads_like_pythons_without_machinery(cell):
    record = record_of(cell["fail"], 1)
    assert record.format() == [
        "Traceback (most recent call last):",
        '  File "<cell>", line 2, in fail',
        "    return 1 + x / 0",
        "               ^^^^^",
        "ZeroDivisionError: division by zero",
    ]
    assert [frame.is_internal for frame in record.frames] == [True, False]


def test_lines_and_labels_come_from_the_notebook_when_it_knows_them(cell):
    lines = record_of(cell["fail"], 1).format(
        lambda name, number: f"line {number} of {name}", lambda name: f"Cell {name}"
    )
    assert lines[1:3] == ["  Cell <cell>, line 2, in fail", "    line 2 of <cell>"]
    assert "^" not in "".join(lines), "the columns belong to another text"


@pytest.mark.parametrize(
    "name, words",
    [("caused", "was the direct cause of"), ("during", "During handling of")],
)
def test_causes_come_first(cell, name, words):
    lines = record_of(cell[name]).format()
    assert lines.index("ZeroDivisionError: division by zero") < lines.index("KeyError: 'lost'")
    assert sum(words in line for line in lines) == 1


def test_a_syntax_error_shows_its_place_and_its_caret():
    record = record_of(compile, "\n\nfor x in 'é' 3:\n  pass", "<cell>", "exec")
    assert record.format() == [
        '  File "<cell>", line 3',
        "    for x in 'é' 3:",
        "                 ^",
        "SyntaxError: invalid syntax",
    ]


def test_groups_show_their_members():
    record = raised(ExceptionGroup("two", [ValueError("a"), TypeError("b")]))
    assert record.format() == [
        "ExceptionGroup: two (2 sub-exceptions)",
        "  +---- 1 of 2 ----",
        "  | ValueError: a",
        "  +---- 2 of 2 ----",
        "  | TypeError: b",
    ]


def test_notes_and_qualified_names_are_shown():
    error = json.JSONDecodeError("bad", "{", 0)
    error.add_note("while reading\nthe file")
    assert raised(error).format() == [
        "json.decoder.JSONDecodeError: bad: line 1 column 1 (char 0)",
        "while reading",
        "the file",
    ]


# ------------------------------------------------------------------------------- hostile exceptions


class Unspeakable(Exception):
    def __str__(self):
        raise SystemExit("no")


class Hidden(Exception):
    @property
    def __cause__(self):
        raise RuntimeError

    __context__ = __traceback__ = __suppress_context__ = __cause__
    __notes__ = 3


class Text(str):
    __slots__ = ()

    def __len__(self):
        raise RuntimeError

    __getitem__ = encode = __len__


class Odd(Exception):
    def __str__(self):
        return Text("odd")


def test_messages_that_cannot_be_had():
    assert "__str__ raised SystemExit" in raised(Unspeakable()).evalue
    assert raised(Odd()).evalue == "odd"
    assert raised(Hidden("x")).evalue == "x"
    assert raised(ValueError("\ud800")).evalue == "\\ud800"


def test_a_huge_message_is_cut_with_a_note():
    record = raised(ValueError("x" * 10**8))
    assert len(json.dumps(record.to_json())) < 20_000
    assert record.evalue.endswith("... [99990000 more characters]")


def test_causes_in_a_ring_end():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    record = raised(first)
    assert record.cause.evalue == "second"
    assert record.cause.context is None


def test_long_chains_and_wide_groups_are_bounded():
    error = ValueError("0")
    for i in range(1000):
        error, error.__cause__ = ValueError(str(i)), error
    assert len(raised(error).format()) < 500
    record = raised(ExceptionGroup("many", [ValueError(i) for i in range(1000)]))
    assert len(record.exceptions) + record.left_out == 1000
    assert record.format()[-1] == f"  +---- {record.left_out} more ----"
    for _ in range(900):
        error = ExceptionGroup("nested", [error])
    assert len(raised(error).format()) < 500


def test_deep_recursion_shows_its_ends(cell):
    record = record_of(cell["deep"], 500)
    assert sum(frame.skipped + 1 for frame in record.visible) == 502
    assert record.format()[-5:] == [
        "  ... 498 more frames ...",
        '  File "<cell>", line 2, in fail',
        "    return 1 + x / 0",
        "               ^^^^^",
        "ZeroDivisionError: division by zero",
    ]


def test_a_long_stack_without_repeats_loses_its_middle():
    functions = [f"def f{i}(): return f{i + 1}()" for i in range(300)]
    names = {}
    exec(compile("\n".join([*functions, "def f300(): 1/0"]), "<cell>", "exec"), names)
    record = record_of(names["f0"])
    assert len(record.frames) == records.HEAD_FRAMES + records.TAIL_FRAMES
    assert sum(frame.skipped + 1 for frame in record.frames) == 302
    assert record.frames[-1].function == "f300"


def test_a_source_that_raises_is_no_source(cell):
    def broken(filename, lineno):
        raise OSError(filename)

    with pytest.raises(ZeroDivisionError) as caught:
        cell["fail"](1)
    assert ErrorRecord.from_exception(caught.value, source=broken).visible[-1].line is None


# --------------------------------------------------------------------------------------------- rest


def test_signatures_group_by_place_and_type_only(cell):
    def signature(name, *args):
        return record_of(cell[name], *args).signature()

    assert signature("fail", 1) == signature("fail", 2)
    assert signature("fail", 1) != signature("deep", 1)
    assert signature("caused") != signature("during")
    assert raised(ValueError(1)).signature() == raised(ValueError(2)).signature()
    assert raised(ValueError(1)).signature() != raised(TypeError(1)).signature()


@pytest.mark.parametrize(
    "junk", [None, [], {}, {"ename": "E", "evalue": "", "module": "", "frames": [[1, 2]]}, "x"]
)
def test_junk_is_no_record(junk):
    with pytest.raises(RemoteProtocolError):
        ErrorRecord.from_json(junk)


def test_what_is_machinery():
    assert is_internal(records.__file__)
    assert is_internal("/venv/lib/IPython/core/interactiveshell.py")
    assert is_internal("<frozen runpy>")
    assert not is_internal("/home/me/monarch_nb/train.py")
    assert not is_internal("/venv/lib/torch/nn/modules/module.py")


def test_repr_of_a_frame_is_plain():
    assert FrameRecord("f", 1, "g") == FrameRecord("f", 1, "g", None, False, None, 0)


def test_a_line_that_a_debugger_held_is_shown_once():
    """Python notes the line twice where a trace function raises."""

    def held():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        held()
    error = caught.value
    first = error.__traceback__
    last = first.tb_next
    again = TracebackType(None, last.tb_frame, last.tb_lasti, last.tb_lineno)
    twice = TracebackType(again, last.tb_frame, last.tb_lasti, last.tb_lineno)
    error.__traceback__ = TracebackType(twice, first.tb_frame, first.tb_lasti, first.tb_lineno)
    record = ErrorRecord.from_exception(error)
    assert [frame.function for frame in record.frames].count("held") == 1
