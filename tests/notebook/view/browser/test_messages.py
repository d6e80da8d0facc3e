"""What a browser sends: read into small objects, or a sentence for people; nothing else."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_nb.notebook.view.answers import actions, debug_sessions, questions
from monarch_nb.notebook.view.browser.protocol import (
    Ask,
    Bye,
    Do,
    Follow,
    Hello,
    Malformed,
    Ping,
    parse,
)
from tests.notebook.view.fake_browser import check, schema_of

HELLO = {"type": "hello", "from": "a", "period_ms": 100, "parts": ["strips"], "mesh": None}
FOLLOW = {"type": "follow", "from": "a", "mesh": "m", "ranks": "0-2", "on": True, "after": 7}
RANK = {"type": "ask", "from": "a", "id": 3, "what": "rank", "mesh": "m", "rank": 2}
SCALE = {"type": "do", "from": "a", "id": 4, "what": "scale", "mesh": "m", "hosts": 3}
LOGS = {"type": "ask", "from": "a", "id": 5, "what": "logs", "mesh": "m", "ranks": None,
        "count": 50, "pattern": "loss=[0-9]+", "level": "error", "before": None}  # fmt: skip


def v1(message, **changes):
    return {"v": 1, **message, **changes}


@pytest.mark.parametrize(
    "message, read",
    [
        (HELLO, Hello("a", 0.1, frozenset({"strips"}), None)),
        ({"type": "ping", "from": "a"}, Ping("a")),
        ({"type": "bye", "from": "a"}, Bye("a")),
        (FOLLOW, Follow("a", "m", (0, 1, 2), True, 7)),
        (RANK, Ask("a", 3, "rank", {"mesh": "m", "rank": 2})),
        (SCALE, Do("a", 4, "scale", {"mesh": "m", "hosts": 3})),
        (LOGS, Ask("a", 5, "logs", {"mesh": "m", "ranks": None, "count": 50,
                                    "pattern": "loss=[0-9]+", "level": "error", "before": None})),
    ],
)  # fmt: skip
def test_messages_are_read(message, read):
    assert parse(v1(message)) == read


@pytest.mark.parametrize(
    "message, sentence",
    [
        ([], "a message is an object, not that list"),
        ({"type": "ping", "from": "a", "v": 2},
         ("this page speaks version 2 of the mesh view, the kernel version 1: restart the kernel"
         " with a newer monarch_nb")),
        ({"type": "ping", "from": "a"},
         ("this page speaks version another of the mesh view, the kernel version 1: reload the"
         " page")),
        (v1({"type": "pong"}), "the kernel knows no message of type 'pong'"),
        (v1({"type": {}}), "the kernel knows no message of type that object"),
        (v1(HELLO, **{"from": 3}), ("hello: from must be a text of 64 characters at most, not that"
                                   " number")),
        (v1(HELLO, **{"from": "x" * 65}), "hello: from must be a text of 64 characters at most,"
                                          " not '" + "x" * 40 + "'..."),
        (v1(HELLO, period_ms=True),
         "hello: period_ms must be a whole number from 100 to 5000, not true"),
        (v1(HELLO, period_ms=99),
         "hello: period_ms must be a whole number from 100 to 5000, not that number"),
        (v1(HELLO, parts=["all"]), ("hello: parts must be one of strips, curves, failures, actors,"
                                   " not 'all'")),
        (v1(HELLO, parts="strips"), ("hello: parts must be a list of some of strips, curves,"
                                    " failures, actors, not 'strips'")),
        (v1(RANK, what="fly"), ("ask: what must be one of rank, failure, stacks, logs, whole_logs,"
                               " curve, metrics, cell, outputs, words, debugger, engines, kept,"
                               " replay, variables, window, picture, not 'fly'")),
        (v1(RANK, rank=True), "rank: rank must be a whole number from 0 to 100000, not true"),
        (v1(RANK, rank=-1), "rank: rank must be a whole number from 0 to 100000, not that number"),
        (v1(RANK, rank=10**5000),
         "rank: rank must be a whole number from 0 to 100000, not that number"),
        (v1(FOLLOW, ranks="0-999999999"),
         "follow: ranks must be ranks such as '0-3,7', not '0-999999999'"),
        (v1(FOLLOW, ranks="3-1"), "follow: ranks must be ranks such as '0-3,7', not '3-1'"),
        (v1(FOLLOW, on=1), "follow: on must be true or false, not that number"),
        (v1(SCALE, hosts=0), ("scale: hosts must be a whole number from 1 to 100000, not that"
                             " number")),
        (v1(SCALE, what="up"), "up: line must be a text of 10000 characters at most, not null"),
        (v1(LOGS, count=5001), ("logs: count must be a whole number from 1 to 5000, not that"
                               " number")),
        (v1(LOGS, level="info"), "logs: level must be one of '', warning, error, not 'info'"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_a_sentence(message, sentence):
    assert parse(message).error == sentence


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)*c", "(?:x*){2}", ".*.*.*.*x", "(", "x{9" * 9]
)
def test_searches_that_could_hang_are_refused(pattern):
    assert parse(v1(LOGS, pattern=pattern)).error.startswith("logs: pattern m")


@pytest.mark.parametrize(
    "pattern", [r"loss=\d+\.\d*", "[(+*]+", "(error|warning) ", "a{2}", r"\)+"]
)
def test_usual_searches_are_not(pattern):
    assert isinstance(parse(v1(LOGS, pattern=pattern)), Ask)


def test_who_asked_wrongly_can_be_answered():
    wrong = parse(v1(RANK, rank=None))
    assert (wrong.client, wrong.id) == ("a", 3)
    assert parse(v1({"type": "ping", "from": "b", "id": 3}, **{"from": "b"})) == Ping("b")
    assert parse(v1(HELLO, id=3, parts=0)).id is None


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)  # JSON has no others
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)
_ASKS, _DOS = (
    {each["properties"]["what"]["const"]: each["properties"] for each in schema_of(kind)["oneOf"]}
    for kind in ("ask", "do")
)
_WORDS = st.sampled_from([*_ASKS, *_DOS, "hello", "ping", "bye", "ask", "do", "follow"])
_NAMES = sorted({name for table in (*_ASKS.values(), *_DOS.values()) for name in table})
_FIELD = st.sampled_from([*_NAMES, "v", "type", "from", "id", "what", "period_ms", "parts", "on",
                          "after"])  # fmt: skip
_VALUE = _JSON | _WORDS | st.just(1) | st.sampled_from(["0-3,7", "0-3,", "1-", "٣", "mesh0", "(a"])
_MESSAGES = st.dictionaries(_FIELD, _VALUE) | _JSON
_ALMOST = st.builds(
    lambda message, changes: {**v1(message), **changes},
    st.sampled_from([HELLO, FOLLOW, RANK, SCALE, LOGS]),
    st.dictionaries(_FIELD, _VALUE, max_size=2),
)


@given(_MESSAGES | _ALMOST)
def test_any_json_is_a_message_or_a_sentence(value):
    """And what is a message is one by the schema too."""
    found = parse(value)
    if isinstance(found, Malformed):
        assert 0 < len(found.error) < 1_000
        json.dumps(found.error).encode()
    else:
        check(value, "to_kernel")


@pytest.mark.parametrize("message", [HELLO, FOLLOW, RANK, SCALE, LOGS])
def test_the_schema_takes_what_browsers_send(message):
    check(v1(message), "to_kernel")


def test_every_question_and_action_of_the_schema_is_answered():
    debugging = set(debug_sessions.WORDS)
    assert set(_ASKS) == questions.QUESTIONS.keys() | (debugging & {"words"})
    assert set(_DOS) == actions.ACTIONS.keys() | (debugging - {"words"})


def test_a_message_is_read_in_less_than_a_millisecond():
    messages = [v1(message) for message in (HELLO, FOLLOW, RANK, SCALE, LOGS)] * 100
    parse_all = [parse(message) for message in messages[:5]]  # the checks are made now
    began = time.thread_time()
    assert [parse(message) for message in messages] == parse_all * 100
    assert time.thread_time() - began < len(messages) / 1000
