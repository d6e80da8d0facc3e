"""Control messages, their answers, and the records in them."""

import inspect

from monarch_nb.core import curves
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages import (
    actors,
    agents,
    cells,
    codec,
    debug,
    elastic,
    groups,
    hosts,
    keeping,
    status,
    stores,
)
from monarch_nb.errors import ProtocolError

_MODULES = (actors, agents, cells, debug, elastic, groups, hosts, keeping, status, stores)
_KINDS = {
    codec.verb_of(kind): kind
    for module in _MODULES
    for kind in vars(module).values()
    if inspect.isclass(kind)
    and issubclass(kind, codec.ControlMessage)
    and kind.__module__ == module.__name__
}
_REQUESTS = {verb: kind for verb, kind in _KINDS.items() if issubclass(kind, codec.Request)}


def control_message(data: bytes) -> bool:
    """Any bytes are refused with ProtocolError, or decode to a message that encodes to bytes which
    are read as the same."""
    try:
        body = codec.json_of(data)
        verb = body.get("verb")
        kind = _KINDS.get(verb) if isinstance(verb, str) else None
        if kind is None:
            return False
        written = codec.encode(codec.decode(kind, body))
    except ProtocolError:
        return False
    assert codec.encode(codec.decode(kind, codec.json_of(written))) == written
    return True


def answer(data: bytes) -> bool:
    """Any answer to a request, whose verb stands in the first line, is refused with ProtocolError,
    or decodes to one that encodes to bytes which are read as the same."""
    verb, _, payload = data.partition(b"\n")
    kind = _REQUESTS.get(verb.decode("latin-1"))
    if kind is None:
        return False
    try:
        written = codec.encode_answer(codec.decode_answer(kind.answer(), payload))
    except ProtocolError:
        return False
    again = codec.decode_answer(kind.answer(), written)
    assert codec.encode_answer(again) == written
    return True


def error_record(data: bytes) -> bool:
    """Any JSON object is refused with ProtocolError, or is the record of an error that can be
    shown and is written as it is read."""
    try:
        found = ErrorRecord.from_json(codec.json_of(data))
    except ProtocolError:
        return False
    assert found.headline
    assert all(isinstance(line, str) for line in found.format())
    assert ErrorRecord.from_json(found.to_json()) == found
    return True


def curve_point(data: bytes) -> bool:
    """Any JSON value is refused with ProtocolError, or is a point that is written as it is read."""
    try:
        found = curves.from_wire(codec.json_of(b'{"point": %b}' % data)["point"])
    except (ProtocolError, KeyError):
        return False
    written = curves.to_wire(found)
    assert curves.to_wire(curves.from_wire(written)) == written
    return True
