"""What a browser sends, checked by `protocol.schema.json` and read into small frozen objects.

Rule of the file: any JSON value is a message or `Malformed`, a sentence for people; nothing else
is ever raised, and no text of the sender's is repeated beyond a few characters. What fields a
message has and what they may be stands in the schema alone; here is what a schema cannot say. It
knows no mesh.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypedDict, cast

VERSION: Final = 1
_MAX_RANKS: Final = 100_000
_SHOWN: Final = 40
_RUN: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True)
class Hello:
    """A view begins, or wants another period or other parts. `mesh`: a name, or None for all."""

    client: str
    period_s: float
    parts: frozenset[str]
    mesh: str | None


@dataclass(frozen=True, slots=True)
class Ping:
    """A view is still there."""

    client: str


@dataclass(frozen=True, slots=True)
class Bye:
    """A view is gone."""

    client: str


class Args(TypedDict, total=False):
    """What stands beside `what`; each question and each action has some of these."""

    mesh: str
    rank: int
    ranks: tuple[int, ...] | None
    failure: int | str
    past: int | None
    after: str
    count: int
    pattern: str
    level: str
    before: int | None
    name: str
    number: int
    since: int
    indices: tuple[int, ...]
    row: int
    column: int
    session: int
    line: str
    hosts: int
    job: int
    failed: bool
    whom: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `args` holds the fields that belong to `what`."""

    client: str
    id: int
    what: str
    args: Args


@dataclass(frozen=True, slots=True)
class Do:
    """An action; as `Ask`."""

    client: str
    id: int
    what: str
    args: Args


@dataclass(frozen=True, slots=True)
class Follow:
    """New lines of the log are wanted, or no more. `after`: the number of the last one seen."""

    client: str
    mesh: str | None
    ranks: tuple[int, ...] | None
    on: bool
    after: int | None


@dataclass(frozen=True, slots=True)
class Malformed:
    """No message. `client` and `id` are those of the sender, as far as they could be read."""

    error: str
    client: str = ""
    id: int | None = None


Message = Hello | Ping | Bye | Ask | Do | Follow


class _Wrong(Exception):
    """Says what a field must be."""


def parse(message: object) -> Message | Malformed:
    """Read a message, or say what is wrong with it.

    Example:
        >>> parse({"v": 1, "type": "ping", "from": "a"})
        Ping(client='a')
        >>> parse({"v": 1, "type": "ping"}).error
        "ping: from must be a text of 64 characters at most, not null"
    """
    if not isinstance(message, dict):
        return Malformed(f"a message is an object, not {_shown(message)}")
    try:
        return _read(message)
    except _Wrong as wrong:
        return Malformed(str(wrong), *_sender(message))


def _read(message: Mapping[str, object]) -> Message:
    version, kind = message.get("v"), message.get("type")
    if type(version) is not int or version != VERSION:
        raise _Wrong(_version_error(version))
    if not isinstance(kind, str) or kind not in _grammar():
        raise _Wrong(f"the kernel knows no message of type {_shown(kind)}")
    found = _checked(kind, _grammar()[kind], message)
    client = found["from"]
    if kind == "hello":
        parts = frozenset(found["parts"])
        return Hello(client, found["period_ms"] / 1000, parts, found["mesh"])
    if kind == "follow":
        return Follow(client, found["mesh"], found["ranks"], found["on"], found["after"])
    if kind == "ping":
        return Ping(client)
    if kind == "bye":
        return Bye(client)
    make, known, what = Ask if kind == "ask" else Do, _grammar()[kind].options, message.get("what")
    if not isinstance(what, str) or what not in known:
        raise _Wrong(f"{kind}: what must be one of {', '.join(known)}, not {_shown(what)}")
    args = _checked(what, known[what], message)
    del args["what"]
    return make(client, found["id"], what, cast(Args, args))


def _checked(what: str, grammar: _Grammar, message: Mapping[str, object]) -> dict[str, Any]:
    # The fields of that grammar; those that are missing are null
    given = {name: message.get(name) for name in grammar.names}
    if error := grammar.error(given):
        raise _Wrong(f"{what}: {error}")
    found = {}
    for name, value in given.items():
        try:
            found[name] = _converted(name, value)
        except _Wrong as wrong:
            raise _Wrong(f"{what}: {name} {wrong}") from None
    return found


def _sender(message: Mapping[str, object]) -> tuple[str, int | None]:
    client, number = message.get("from"), message.get("id")
    head = {"v": VERSION, "type": "ask", "from": "-", "id": 0}
    ask = _grammar()["ask"]
    is_id = message.get("type") in ("ask", "do") and not ask.error({**head, "id": number})
    is_client = not ask.error({**head, "from": client})
    return str(client) if is_client else "", int(cast(float, number)) if is_id else None


def _version_error(theirs: object) -> str:
    # The page and the kernel are not of the same release
    newer = type(theirs) is int and theirs > VERSION
    said = theirs if type(theirs) is int and 0 <= theirs < 1_000 else "another"
    remedy = "restart the kernel with a newer monarch_nb" if newer else "reload the page"
    return f"this page speaks version {said} of the mesh view, the kernel version 1: {remedy}"


# ------------------------------------------------------------------------------ the schema


class _Grammar:
    """One object of the schema; `options` are those of its `oneOf`, by their `what`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        own = {name: value for name, value in schema.items() if name != "oneOf"}
        self.names: tuple[str, ...] = tuple(schema["properties"])
        self.options: dict[str, _Grammar] = {
            option["properties"]["what"]["const"]: _Grammar(option)
            for option in schema.get("oneOf", ())
        }
        self._compile = functools.cache(lambda: _compiled(own))

    def error(self, fields: Mapping[str, object]) -> str:
        # What is wrong with the fields of a message; empty if nothing is
        validate, refused = self._compile()
        try:
            validate(fields)
        except refused as wrong:
            name = wrong.path[1]
            return f"{name} must be {_expected(wrong.definition)}, not {_shown(wrong.value)}"
        return ""


@functools.cache
def _grammar() -> dict[str, _Grammar]:
    # What a browser may send, by type
    schema = json.loads((files("monarch_nb.notebook.view") / "protocol.schema.json").read_text())
    known = schema["$defs"]

    def whole(part: Any) -> Any:
        # Without references
        if isinstance(part, list):
            return [whole(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return whole(known[part["$ref"].rpartition("/")[2]])
        return {name: whole(each) for name, each in part.items()}

    kinds = whole(known["to_kernel"]["oneOf"])
    return {kind["properties"]["type"]["const"]: _Grammar(kind) for kind in kinds}


def _compiled(schema: dict[str, Any]) -> tuple[Callable[[object], object], type[Any]]:
    # Imported when a browser first speaks, since kernels without one have no use for it. Why not
    # `jsonschema`: with the formats that Jupyter's server brings, its import takes a second of the
    # interpreter, and each message a third of a millisecond. This takes 2 ms, and 20 us.
    import fastjsonschema

    return fastjsonschema.compile(schema), fastjsonschema.JsonSchemaValueException


def _expected(schema: Mapping[str, Any]) -> str:
    if told := schema.get("description"):
        return str(told)
    if "anyOf" in schema:
        return _expected(schema["anyOf"][0])
    if "enum" in schema:
        return f"one of {_listed(schema['enum'])}"
    kind = schema["type"]
    if kind == "array":
        return f"a list of some of {_listed(schema['items']['enum'])}"
    if kind == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    if kind == "string":
        return f"a text of {schema['maxLength']} characters at most"
    return "true or false"


def _listed(words: Collection[str]) -> str:
    return ", ".join(word or "''" for word in words)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return ascii(value[:_SHOWN]) + ("..." if len(value) > _SHOWN else "")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "that number"
    kinds: dict[type, str] = {list: "that list", dict: "that object"}
    return kinds.get(type(value), "that")


# ------------------------------------------------------------ what the schema cannot say


def _converted(name: str, value: Any) -> object:
    if name == "ranks" and value is not None:
        return _ranks(value)
    if name == "pattern":
        return _pattern(value)
    if name == "indices":
        return tuple(map(int, value))
    return int(value) if isinstance(value, float) else value  # for JSON, 2.0 is a whole number


def _ranks(value: str) -> tuple[int, ...]:
    found: set[int] = set()
    for piece in value.split(","):
        match = _RUN.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < _MAX_RANKS:
            raise _Wrong(f"must be ranks such as '0-3,7', not {_shown(value)}")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _pattern(written: str) -> str:
    # The search cannot be stopped and holds the interpreter, so what could take for ever is
    # refused: a repetition of a group, more than three repetitions.
    try:
        re.compile(written)
    except (re.error, OverflowError, RecursionError) as error:
        raise _Wrong(f"must be a regular expression: {error}") from None
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", written)
    if re.search(r"\)\s*[*+{]", plain) or len(re.findall(r"[*+{]", plain)) > 3:
        raise _Wrong("may repeat single characters, three times at most: the search could hang")
    return written
