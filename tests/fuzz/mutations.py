"""Inputs for targets: bytes, and seeds that were changed a little, as bytes and as JSON."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

_ODD_BYTES = (
    b"", b"\0", b"\xff" * 4, b"\xff" * 8, b"\0" * 16, b"\x80", b"\xed\xa0\x80", b"\n", b" ", b"=",
    b",", b":", b"-", b"'", b'"', b"(", b"[", b"{", b"]}", b"*", b"%", b"..", b"/", b"0", b"-1",
    b"99999999999", b"9" * 5000, b"1e999", b"NaN", b"null", b"true", b"[" * 2000, b"\\ud800",
    "٣²".encode(),
)  # fmt: skip
_ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 64, 10**400, 0.5, float("nan"), float("inf"), "", "a", "\0", "/",
    "..", "\ud800", "9" * 5000, [], [None], [[]], {}, {"a": 1}, [1, 2, 3], ["a"] * 50,
)  # fmt: skip


def inputs(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy of bytes, most of them seeds that were changed."""
    changed = _changed_bytes(seeds)
    objects = [value for seed in seeds if (value := _value_of(seed)) is not None]
    if not objects:
        return st.one_of(st.binary(max_size=200), changed, changed)
    return st.one_of(st.binary(max_size=50), changed, _changed_json(objects))


@st.composite
def _changed_bytes(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 8)))
        new = draw(st.one_of(st.sampled_from(_ODD_BYTES), st.binary(max_size=8)))
        data = data[:begin] + new + data[end:]
    return data


@st.composite
def _changed_json(draw: st.DrawFn, objects: Sequence[Any]) -> bytes:
    value = draw(st.sampled_from(objects))
    for _ in range(draw(st.integers(1, 2))):
        value = _with_change(draw, value)
    return json.dumps(value).encode()


def _with_change(draw: st.DrawFn, value: Any) -> Any:
    # a copy in which one part is another value, or is missing
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        parts = list(value.items() if isinstance(value, dict) else enumerate(value))
    if not parts or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(_ODD_VALUES))
    at, part = draw(st.sampled_from(parts))
    copy = value.copy()
    if draw(st.integers(0, 9)) == 0:
        del copy[at]
    elif isinstance(part, dict | list):
        copy[at] = _with_change(draw, part)
    else:
        copy[at] = draw(st.sampled_from(_ODD_VALUES))
    return copy


def _value_of(seed: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(seed)
        return value if isinstance(value, dict | list) else None
    return None
