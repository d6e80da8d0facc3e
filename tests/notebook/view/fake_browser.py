"""A browser for tests: applies states and deltas as docs/comms.md says, and checks each message
against the schema."""

import copy
import functools
import json
import math
from importlib.resources import files
from typing import Any

import jsonschema

from monarch_nb.core.errors.folding import listed_ranks

USAGE = ("cpu", "rss", "queue", "calls", "failed", "beat", "gpu", "gpu_mem")


@functools.cache
def validator(what: str = "to_browser") -> jsonschema.Draft202012Validator:
    text = (files("monarch_nb.notebook.view") / "protocol.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator({**schema, "oneOf": [{"$ref": f"#/$defs/{what}"}]})


def check(message: Any, what: str = "to_browser") -> Any:
    """The message as it comes out of JSON. Raises if it is none of the protocol's."""
    found = json.loads(json.dumps(message, ensure_ascii=False, allow_nan=False).encode())
    validator(what).validate(found)
    return found


def schema_of(part: str) -> Any:
    return validator().schema["$defs"][part]


PARTS = frozenset(schema_of("hello")["properties"]["parts"]["items"]["enum"])


class Browser:
    """What a page knows of the meshes."""

    def __init__(self) -> None:
        self.n = -1
        self.seconds = 0
        self.top: dict[str, Any] = {}
        self.meshes: dict[str, dict[str, Any]] = {}

    def apply(self, message: Any, seen: Any = None) -> None:
        message = check(message)
        if message["type"] == "delta":
            assert message["base"] == self.n, "stale"
        else:
            self.meshes = {}
        self.n = message["n"]
        self.seconds = message.get("seconds", self.seconds)
        self.top |= {
            key: message[key] for key in ("hosts", "cell", "current", "jobs") if key in message
        }
        for name, part in message.get("meshes", {}).items():
            if part is None:
                self.meshes.pop(name, None)  # it may have come and gone since
            else:
                self.take(name, part)

    def take(self, name: str, part: dict[str, Any]) -> None:
        if "labels" in part:
            size = math.prod(part["sizes"])
            self.meshes[name] = {
                "rows": {},
                "usage": {},
                "curves": {},
                "runs": {},
                "strips": [""] * size,
            }
        mesh = self.meshes[name]
        for runs, state, what, detail, since in part.get("ranks", ()):
            ranks = listed_ranks(runs)
            sinces = since if isinstance(since, list) else [since] * len(ranks)
            assert len(sinces) == len(ranks)
            for rank, each in zip(ranks, sinces, strict=True):
                mesh["rows"][rank] = (state, what, detail, each)
        usage = part.get("usage", {"ranks": ""})
        ranks = listed_ranks(usage["ranks"])
        for column in usage.keys() & set(USAGE):
            mesh["usage"] |= {
                (column, rank): value for rank, value in zip(ranks, usage[column], strict=True)
            }
        for curve, news in part.get("curves", {}).items():
            known = mesh["curves"].get(curve, [])
            assert news["from"] <= len(known)
            mesh["curves"][curve] = known[: news["from"]] + news["points"]
        for run, told in part.get("runs", {}).items():
            mesh["runs"][run] = told
        mesh["runs"] = {run: told for run, told in mesh["runs"].items() if told is not None}
        if "strips" in part:
            mesh["strips"] = part["strips"]
        if "strip" in part:
            pairs = zip(mesh["strips"], part["strip"], strict=True)
            mesh["strips"] = [(strip + letter)[-300:] for strip, letter in pairs]
        plain = ("labels", "sizes", "ended", "hosts", "pids", "failures", "past", "actors")
        mesh |= {key: part[key] for key in plain if key in part}

    def known(self) -> Any:
        return copy.deepcopy((self.n, self.seconds, self.top, self.meshes))
