"""Every control message and every answer on its way through bytes, and what hostile bytes do."""

import json
import math
import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb.core.errors.records import ErrorRecord, FrameRecord
from monarch_nb.core.wire.messages import (
    actors,
    agents,
    cells,
    codec,
    debug,
    groups,
    status,
    stores,
    testing,
)
from monarch_nb.errors import RemoteProtocolError

KINDS = sorted(
    (
        each
        for module in (actors, agents, cells, codec, debug, groups, status, stores, testing)
        for each in vars(module).values()
        if hasattr(each, "_fields") and each.__module__ == module.__name__
        and not each.__name__.startswith("_")
    ),
    key=lambda kind: (kind.__module__, kind.__name__),
)  # fmt: skip
VERBS = [kind for kind in KINDS if kind in codec._VERBS]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=8),
    stores.Blob: st.builds(stores.Blob, st.binary(max_size=8)),
    Any: st.text(max_size=3),
    object: st.text(max_size=3),
    ErrorRecord: st.builds(
        ErrorRecord,
        st.text(),
        st.text(),
        frames=st.just((FrameRecord("f.py", 3, "f", "x", columns=(0, 1)),)),
    ),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values(hints[name]) for name in hint._fields})
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    assert origin is types.UnionType, hint
    return st.none() | values(args[0])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_what_is_written_is_read_back(kind, data):
    message = data.draw(values(kind))
    if kind is codec.Refused:
        assert codec.decode_answer(codec.Done, codec.encode_answer(message)) == message
        return
    written = codec.encode(message) if kind in VERBS else codec.encode_answer(message)
    found = codec.decode(kind, codec.json_of(written))
    assert (type(found), found) == (kind, message)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_hostile_fields_raise_nothing_else(kind, data):
    body = data.draw(st.dictionaries(st.sampled_from([*kind._fields, "error"]), ANYTHING))
    for read in (
        codec.decode,
        lambda kind, body: codec.decode_answer(kind, json.dumps(body).encode()),
    ):
        try:
            found = read(kind, body)
        except RemoteProtocolError:
            continue
        assert isinstance(found, kind | codec.Refused)


@pytest.mark.parametrize("payload", [
    b"", b"\xff", b"[1]", b"3", b'"text"', b"{", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000,
])  # fmt: skip
def test_what_is_no_object_raises(payload):
    with pytest.raises(RemoteProtocolError):
        codec.json_of(payload)


def _nested(levels: int) -> list[object]:
    return [] if levels == 1 else [_nested(levels - 1)]


def test_what_is_passed_on_may_have_many_levels():
    config = {"a": _nested(199)}
    assert codec.decode(agents.Spawn, {"procs": [1], "config": config}).config == config


@pytest.mark.parametrize("kind, body, said", [
    (actors.Release, {}, "Release without segment"),
    (actors.Release, {"segment": True}, "Release.segment: bool, not int"),
    (actors.Release, {"segment": None}, "Release.segment: NoneType, not int"),
    (agents.WatchBoard, {"on": True, "period_s": 10**400}, "a number that is too large"),
    (agents.WatchBoard, {"on": True, "period_s": math.nan}, "nan is no number"),
    (agents.Stop, {"procs": [], "grace_s": math.inf}, "inf is no number"),
    (actors.Release, {"segment": 1 << 64}, "a number that is too large"),
    (agents.Spawn, {"procs": [1], "config": {"a": _nested(200)}}, "more than 200 levels"),
    (actors.Healed, {"moved": [[1, [2], 3]]}, "Healed.moved: 3 entries, not 2"),
    (cells.RunCell, {"script": {"name": "a.py"}}, "RunCell.script: Script without args"),
    (cells.CellOutcome, {"status": "error", "error": {}}, "not the record of an error"),
])  # fmt: skip
def test_what_is_wrong_is_said(kind, body, said):
    with pytest.raises(RemoteProtocolError) as raised:
        codec.decode(kind, body)
    assert said in str(raised.value)


def test_the_wire_is_as_the_protocol_says():
    script = cells.Script("a.py", ["-v"], False, [0, 2], [1, 1], "r", 80)
    assert json.loads(codec.encode(cells.RunCell(script=script, what="a.py"))) == {
        "verb": "cell", "what": "a.py", "script": {
            "name": "a.py", "args": ["-v"], "module": False, "ranks": [0, 2], "hosts": [1, 1],
            "run": "r", "port": 80,
        },
    }  # fmt: skip
    matches = [cells.Match("deep", 0, 3, "instance")]
    assert json.loads(codec.encode_answer(cells.Completions(matches, {"deep": "instance"}))) == {
        "ok": True, "matches": [["deep", 0, 3, "instance"]], "names": {"deep": "instance"},
    }  # fmt: skip
    assert json.loads(codec.encode_answer(codec.Done())) == {"ok": True}
    assert json.loads(codec.encode_answer(codec.Refused("no"))) == {"error": "no"}


def test_a_verb_is_of_one_message():
    verbs = [codec.verb_of(kind) for kind in VERBS]
    assert len(set(verbs)) == len(verbs)
    for kind in VERBS:
        if hasattr(kind, "answer"):
            assert kind.answer() in KINDS
