"""Control messages as bytes, and back: the only place that knows how they are written.

A message is a named tuple with a verb; a request names the type that it is answered with. On the
wire it is a JSON object, `{"verb": ..., **fields}` (docs/protocol.md); a field that has its default
is left out. Records inside are objects, rows are lists. What comes is checked, field by field, and
whatever is wrong with it raises `RemoteProtocolError` and nothing else.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from monarch_nb.errors import RemoteProtocolError

M = TypeVar("M")
A_co = TypeVar("A_co", covariant=True)
Body = dict[str, Any]
Read = Callable[[Any], Any]
Write = Callable[[Any], object]

_REQUIRED: Final = object()
_DEEPEST: Final = 200  # levels, of what is passed on as it is
_SMALLEST: Final = -(1 << 63)
_LARGEST: Final = (1 << 64) - 1
_CONTAINERS: Final = frozenset((dict, list))
_namedtuple: Callable[..., type] = collections.namedtuple  # noqa: PYI024  defaults at run time
_VERBS: Final[dict[type, str]] = {}
_ROWS: Final[set[type]] = set()


@typing.dataclass_transform(frozen_default=True)
class _MessageType(type):
    """Makes a class with a verb a named tuple of its fields: a `NamedTuple` may have no bases."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], verb: str = ""
    ) -> _MessageType:
        if not verb:
            return super().__new__(cls, name, bases, namespace)
        fields = namespace.get("__annotations__", {})
        defaults = [namespace.pop(field) for field in fields if field in namespace]
        record = _namedtuple(name, fields, defaults=defaults)
        made = super().__new__(cls, name, (*bases, record), {**namespace, "__slots__": ()})
        _VERBS[made] = verb
        return made


class ControlMessage(metaclass=_MessageType):
    """A message that is sent under its verb: `class Taken(ControlMessage, verb="taken")`."""

    __slots__ = ()

    if typing.TYPE_CHECKING:

        def _replace(self, **changes: object) -> Self: ...
        def _asdict(self) -> dict[str, Any]: ...


class Request(ControlMessage, Generic[A_co]):
    """A message that may be answered: `class Stop(Request[Done], verb="stop")`."""

    __slots__ = ()

    @classmethod
    def answer(cls) -> type[A_co]:
        """Return what it is answered with, unless it is refused."""
        kind: type[A_co] = typing.get_args(vars(cls)["__orig_bases__"][0])[0]
        return kind


class Done(NamedTuple):
    """It is done, and that is all there is to say."""


class Refused(NamedTuple):
    """An answer that says why there is none; the death of who was asked is one, too."""

    error: str
    kind: str = ""


def row(kind: type[M]) -> type[M]:
    """Make a NamedTuple travel as a list of its fields, where it is part of a message."""
    _ROWS.add(kind)
    return kind


def verb_of(kind: type) -> str:
    """Return the verb of a message. Raises `KeyError` for what is none."""
    return _VERBS[kind]


def encode(message: object) -> bytes:
    """Write a message with its verb."""
    kind = type(message)
    return json.dumps({"verb": _VERBS[kind], **_fields(kind, message)}).encode()


def encode_answer(answer: object) -> bytes:
    """Write what is sent to who has asked."""
    kind = type(answer)
    fields = _fields(kind, answer)
    return json.dumps(fields if kind is Refused else {"ok": True, **fields}).encode()


def encode_output(output: object) -> bytes:
    """Write what a rank sends to an output port: fields alone."""
    return json.dumps(_fields(type(output), output)).encode()


def json_of(payload: Any) -> Body:
    """Read the body of a message. Raises `RemoteProtocolError` for anything else."""
    try:
        body = json.loads(bytes(payload))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{len(payload)} bytes that are no JSON object")
    return body


def decode(kind: type[M], body: Body) -> M:
    """Make a message. Raises `RemoteProtocolError` if fields are missing or wrong."""
    values = []
    for name, default, read, _ in _plan(typing.cast("type", kind)):
        if name not in body:
            if default is _REQUIRED:
                raise RemoteProtocolError(f"{kind.__name__} without {name}")
            values.append(default)
            continue
        try:
            values.append(read(body[name]))
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{kind.__name__}.{name}: {error}") from None
    return kind(*values)


def decode_answer(kind: type[M], payload: Any) -> M | Refused:
    """Return an answer, or why there is none: what is not "ok" is a refusal. Raises as `decode`."""
    body = json_of(payload)
    return decode(kind, body) if body.get("ok") is True else decode(Refused, body)


class _Field(NamedTuple):
    name: str
    default: object
    read: Read
    write: Write | None  # None: as JSON has it


def _fields(kind: type, message: Any) -> Body:
    return {
        name: value if write is None else write(value)
        for (name, default, _, write), value in zip(_plan(kind), message, strict=True)
        if default is _REQUIRED or value != default
    }


def prepare(*answers: type) -> None:
    """Find out now how all messages and these answers are read and written: forks share it."""
    for kind in (*_VERBS, *answers):
        _plan(kind)


@functools.cache
def _plan(kind: Any) -> tuple[_Field, ...]:
    # How each field is read and written; found out when the type is first used
    hints = typing.get_type_hints(kind)
    return tuple(
        _Field(
            name, kind._field_defaults.get(name, _REQUIRED), _reader(hints[name]),
            _writer(hints[name]),
        )
        for name in kind._fields
    )  # fmt: skip


def _writer(hint: Any) -> Write | None:
    # None where JSON writes it as it should be: rows, being tuples, are written as lists
    if hasattr(hint, "to_json"):
        return lambda value: value.to_json()
    if hasattr(hint, "_fields"):
        return None if hint in _ROWS else lambda value: _fields(hint, value)
    inside = [write for each in typing.get_args(hint) if (write := _writer(each)) is not None]
    if not inside:
        return None
    [write] = inside  # one kind of record for each field
    if typing.get_origin(hint) is list:
        return lambda value: [write(each) for each in value]
    return lambda value: None if value is None else write(value)


def _reader(hint: Any) -> Read:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object):
        return _shallow
    if hint is float:
        return _number
    if hint is int:
        return _integer
    if hasattr(hint, "from_json"):
        return hint.from_json  # type: ignore[no-any-return]  # it says what it makes
    if hasattr(hint, "_fields"):
        return _row_reader(hint) if hint in _ROWS else lambda value: decode(hint, _of(dict, value))
    if origin is list:
        return _list_reader(args[0])
    if origin is tuple:
        return _tuple_reader(args)
    if origin is dict:
        return _dict_reader(args[1])
    if origin is types.UnionType:
        [given] = [each for each in args if each is not types.NoneType]
        read = _reader(given)
        return lambda value: None if value is None else read(value)
    return lambda value: _of(hint, value)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:  # exactly: a bool is no int
        raise RemoteProtocolError(f"{type(value).__name__}, not {kind.__name__}")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise RemoteProtocolError(f"{type(value).__name__}, not int")
    if not _SMALLEST <= value <= _LARGEST:
        raise RemoteProtocolError("a number that is too large")
    return value


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise RemoteProtocolError(f"{type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise RemoteProtocolError("a number that is too large") from None
    if not math.isfinite(number):  # no deadline and no period can be made of it
        raise RemoteProtocolError(f"{number} is no number")
    return number


def _shallow(value: Any) -> Any:
    # what is passed on as it is: whoever writes it again must not run out of stack
    if type(value) is list and _CONTAINERS.isdisjoint(map(type, value)):
        return value  # as are thousands of rows
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(_DEEPEST):
        level = [
            part
            for each in level
            if not _CONTAINERS.isdisjoint(map(type, parts := _parts(each)))
            for part in parts
            if type(part) in _CONTAINERS
        ]
        if not level:
            return value
    raise RemoteProtocolError(f"more than {_DEEPEST} levels in each other")


def _parts(container: Any) -> Any:
    return container.values() if type(container) is dict else container


def _list_reader(hint: Any) -> Read:
    if hint in (Any, object):
        return lambda value: _shallow(_of(list, value))
    read = _reader(hint)
    return lambda value: [read(each) for each in _of(list, value)]


def _tuple_reader(hints: tuple[Any, ...]) -> Read:
    reads = [_reader(hint) for hint in hints]

    def read(value: Any) -> tuple[Any, ...]:
        if len(_of(list, value)) != len(reads):
            raise RemoteProtocolError(f"{len(value)} entries, not {len(reads)}")
        return tuple(one(each) for one, each in zip(reads, value, strict=True))

    return read


def _row_reader(kind: Any) -> Read:
    hints = typing.get_type_hints(kind)
    read = _tuple_reader(tuple(hints[name] for name in kind._fields))
    return lambda value: kind(*read(value))


def _dict_reader(hint: Any) -> Read:
    if hint in (Any, object):
        return lambda value: _shallow(_of(dict, value))
    read = _reader(hint)
    return lambda value: {name: read(each) for name, each in _of(dict, value).items()}
