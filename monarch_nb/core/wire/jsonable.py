"""What ranks show, as JSON: displays and the values of widgets."""

from __future__ import annotations

import base64
import json
import numbers
from collections.abc import Mapping


def jsonable(data: Mapping[str, object]) -> dict[str, object]:
    """Return a mime bundle, or what goes with one, that can be written as JSON."""
    return {
        str(mime): value if isinstance(value, str) else _value(value)
        for mime, value in data.items()
    }


def as_json(message: object) -> bytes:
    """Write JSON, numbers of numpy and torch as numbers; what is none, `nan` too, is text."""
    text = json.dumps(message, default=_number_or_text)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=str))
    return text.encode()


def _number_or_text(value: object) -> object:
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else repr(value)


def _value(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.loads(json.dumps(value, default=_number_or_text), parse_constant=str)
