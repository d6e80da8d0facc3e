"""Inputs for targets: bytes, and seeds that were changed a little, as bytes and as JSON.

Hypothesis draws how; what is done with it is plain code, which is ten times as fast as drawing each
part.
"""

import contextlib
import json
from collections.abc import Sequence
from random import Random
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
    chosen = st.tuples(st.sampled_from(seeds), st.integers(0, 1 << 32))
    return st.one_of(
        st.binary(max_size=64),
        chosen.map(lambda drawn: changed_bytes(drawn[0], Random(drawn[1]))),
        chosen.map(lambda drawn: _changed(drawn[0], Random(drawn[1]))),
    )


def changed_bytes(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to three pieces of them left out, doubled or replaced."""
    for _ in range(random.randint(1, 3)):
        begin = random.randint(0, len(data))
        end = begin + random.choice((0, 0, 1, 1, 4, 8, len(data)))
        new = random.choice((random.choice(_ODD_BYTES), random.randbytes(random.randint(0, 4))))
        data = data[:begin] + new + data[end:]
    return data


def _changed(data: bytes, random: Random) -> bytes:
    # the line of JSON in it if there is one, else the bytes
    head, newline, last = data.rstrip(b"\n").rpartition(b"\n")
    for before, text in ((b"", data), (head + newline, last)):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            for _ in range(random.randint(1, 2)):
                value = _with_change(value, random)
            return before + json.dumps(value).encode()
    return changed_bytes(data, random)


def _with_change(value: Any, random: Random) -> Any:
    # a copy in which one part is another value, or is missing
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        parts = list(value.items() if isinstance(value, dict) else enumerate(value))
    if not parts or random.random() < 0.1:
        return random.choice(_ODD_VALUES)
    at, part = random.choice(parts)
    copy = value.copy()
    if random.random() < 0.1:
        del copy[at]
    elif isinstance(part, dict | list):
        copy[at] = _with_change(part, random)
    else:
        copy[at] = random.choice(_ODD_VALUES)
    return copy
