"""What a browser sends, read into small frozen objects; see docs/comms.md.

Rule of the file: any JSON value is a message or `Malformed`, a sentence for people; nothing else
is ever raised. It knows the fields and no mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from monarch_nb.notebook.view.browser import fields
from monarch_nb.notebook.view.browser.fields import Check, Wrong

VERSION: Final = 1
PARTS: Final = ("strips", "curves", "failures", "actors")
DEVICES: Final = ("auto", "cpu", "cuda")
MAX_LINES: Final = 5_000
MAX_LINE: Final = 10_000
WHOM: Final = ("ranks", "controller", "off")


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


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `args` holds the fields that belong to `what`, checked."""

    client: str
    id: int
    what: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Do:
    """An action; as `Ask`."""

    client: str
    id: int
    what: str
    args: Mapping[str, Any]


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

_CLIENT: Final = fields.text(fields.MAX_CLIENT)
_ID: Final = fields.number(0)
_MESH: Final = fields.text()
_RANKS: Final = fields.ranks
_MAYBE: Final = fields.optional

_FIELDS: Final[dict[str, dict[str, Check]]] = {
    "hello": {
        "from": _CLIENT,
        "period_ms": fields.number(100, 5_000),
        "parts": fields.words(PARTS),
        "mesh": _MAYBE(_MESH),
    },
    "ping": {"from": _CLIENT},
    "bye": {"from": _CLIENT},
    "follow": {
        "from": _CLIENT,
        "mesh": _MAYBE(_MESH),
        "ranks": _MAYBE(_RANKS),
        "on": fields.flag,
        "after": _MAYBE(fields.number(-1)),
    },
}

ASKS: Final[dict[str, dict[str, Check]]] = {
    "rank": {"mesh": _MESH, "rank": fields.number(0, fields.MAX_RANKS)},
    "failure": {"mesh": _MESH, "failure": fields.either(fields.number(0), fields.text())},
    "stacks": {"mesh": _MESH, "ranks": _RANKS},
    "logs": {
        "mesh": _MESH,
        "ranks": _MAYBE(_RANKS),
        "count": fields.number(1, MAX_LINES),
        "pattern": fields.pattern,
        "level": fields.choice("", "warning", "error"),
        "before": _MAYBE(fields.number(0)),
    },
    "curve": {"mesh": _MESH, "name": fields.text(), "rank": fields.number(0, fields.MAX_RANKS)},
    "cell": {"number": fields.number(0)},
    "words": {"talk": fields.number(0), "line": fields.text(MAX_LINE, empty=True)},
    "debugger": {},
}
"""What may be asked, with the fields of each."""

DOS: Final[dict[str, dict[str, Check]]] = {
    "interrupt": {"mesh": _MESH, "ranks": _RANKS},
    "restart": {"mesh": _MESH, "ranks": _RANKS},
    "heal": {"mesh": _MESH},
    "kill": {"mesh": _MESH, "ranks": _RANKS},
    "up": {"sizes": fields.sizes, "name": fields.new_name, "device": fields.choice(*DEVICES)},
    "down": {"mesh": _MESH},
    "use": {"mesh": _MESH},
    "debug": {
        "talk": fields.number(0),
        "mesh": _MESH,
        "rank": fields.number(0, fields.MAX_RANKS),
        "failed": fields.flag,
    },
    "line": {"talk": fields.number(0), "line": fields.text(MAX_LINE, empty=True)},
    "leave": {"talk": fields.number(0)},
    "debugger": {"whom": fields.choice(*WHOM), "mesh": _MAYBE(_MESH), "ranks": _MAYBE(_RANKS)},
}
"""What may be done."""


def parse(message: Any) -> Message | Malformed:
    """The message, or what is wrong with it.

    Example:
        >>> parse({"v": 1, "type": "ping", "from": "a"})
        Ping(client='a')
        >>> parse({"v": 1, "type": "ping"}).error
        "ping: from must be a text of 64 characters at most, not null"
    """
    if not isinstance(message, dict):
        return Malformed(f"a message is an object, not {fields.shown(message)}")
    sender = _sender(message)
    try:
        return _read(message)
    except Wrong as wrong:
        return Malformed(str(wrong), *sender)


def version_error(theirs: Any) -> str:
    """The page and the kernel are not of the same release."""
    newer = type(theirs) is int and theirs > VERSION
    said = theirs if type(theirs) is int and 0 <= theirs < 1_000 else "another"
    remedy = "restart the kernel with a newer monarch_nb" if newer else "reload the page"
    return f"this page speaks version {said} of the mesh view, the kernel version 1: {remedy}"


def _read(message: Mapping[str, Any]) -> Message:
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise Wrong(version_error(version))
    kind = message.get("type")
    if kind in ("ask", "do"):
        return _request(message, kind)
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise Wrong(f"the kernel knows no message of type {fields.shown(kind)}")
    found = _checked(kind, _FIELDS[kind], message)
    client = found["from"]
    if kind == "hello":
        return Hello(client, found["period_ms"] / 1000, found["parts"], found["mesh"])
    if kind == "follow":
        return Follow(client, found["mesh"], found["ranks"], found["on"], found["after"])
    return Ping(client) if kind == "ping" else Bye(client)


def _request(message: Mapping[str, Any], kind: str) -> Ask | Do:
    """Of a question or an action. The arguments stand beside `what`."""
    found = _checked(kind, {"from": _CLIENT, "id": _ID}, message)
    what, known = message.get("what"), ASKS if kind == "ask" else DOS
    if not isinstance(what, str) or what not in known:
        raise Wrong(f"{kind}: what must be one of {', '.join(known)}, not {fields.shown(what)}")
    args = _checked(what, known[what], message)
    make = Ask if kind == "ask" else Do
    return make(found["from"], found["id"], what, args)


def _checked(what: str, checks: Mapping[str, Check], message: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check(message.get(name))
        except Wrong as wrong:
            raise Wrong(f"{what}: {name} {wrong}") from None
    return found


def _sender(message: Mapping[str, Any]) -> tuple[str, int | None]:
    client, number = message.get("from"), message.get("id")
    if not isinstance(client, str) or len(client) > fields.MAX_CLIENT:
        client = ""
    is_id = type(number) is int and 0 <= number <= fields.MAX_NUMBER
    return client, number if is_id and message.get("type") in ("ask", "do") else None
