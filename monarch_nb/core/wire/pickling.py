"""Values to bytes and back. The only `loads` of the project lives here.

Protocol 5 with buffers out of band: an array's memory is handed over as it is, not copied into the
pickle. cloudpickle sends functions and classes of `__main__` (the notebook) by value. What is
unpickled here has come over an authenticated link; nothing else may be given to `loads`.
"""

from __future__ import annotations

import pickle
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import cloudpickle

from monarch_nb.core.wire import reducers
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.errors import EncodeError

_PROTOCOL = 5
_MAX_SEARCH = 2000
_MAX_DEPTH = 20  # nobody reads a longer path, and each step pickles what is below it again
_ATOMS = frozenset({int, float, str, bool, type(None), complex})
_SHORT = 1 << 16  # characters: of a longer text the pieces are the quicker pickle


_reducers, *_others = cloudpickle.Pickler.dispatch_table.maps
_reducers = dict(_reducers)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
    dispatch_table: ClassVar[ChainMap[type, reducers.Reducer]] = ChainMap(_reducers, *_others)


class _Pieces(list[bytes | bytearray]):
    """Collects what a pickler writes: large `bytes` as they are, the rest in frames, uncopied."""

    write = list.append


def dumps(value: object, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickle `value`; contiguous buffers of arrays are appended to `buffers` instead of copied.

    Raises `EncodeError` (a `TypeError`) that names the part that cannot be pickled; an exception
    raised by a `__getstate__` or `__reduce__` of the user's passes through with a note.
    """
    return b"".join(dump_pieces(value, buffers))


def dump_pieces(
    value: object, buffers: list[pickle.PickleBuffer] | None = None
) -> Sequence[bytes | bytearray]:
    """Pickle as `dumps` does, in pieces that make the pickle one after the other.

    Large `bytes` and `bytearray` in the value are pieces themselves: use them before they change.
    """
    pieces = _Pieces()
    callback = None if buffers is None else _collector(buffers)
    if reducers.waiting:
        reducers.known(_reducers)
    try:
        _Pickler(pieces, protocol=_PROTOCOL, buffer_callback=callback).dump(value)
    except Exception as error:
        raise _explained(value, error) from error
    return pieces


def are_short_atoms(values: Iterable[object]) -> bool:
    """Return whether `dumps_plain` is made for these: numbers, short texts, and nothing within."""
    for value in values:
        kind = type(value)
        if kind not in _ATOMS or (isinstance(value, str) and len(value) > _SHORT):
            return False
    return True


def dumps_plain(value: object) -> bytes:
    """Pickle short atoms, tuples and dicts of them only, in a third of the time."""
    return pickle.dumps(value, _PROTOCOL)


def loads(payload: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Unpickle what `dumps` made. Raises whatever the value's own code raises."""
    return pickle.loads(payload, buffers=buffers)  # noqa: S301  links are authenticated, see above


def _collector(buffers: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    def collect(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffer.raw()
        except BufferError:  # not contiguous: keep it in the pickle
            return True
        buffers.append(buffer)
        return False

    return collect


def _explained(value: object, error: Exception) -> BaseException:
    where = _culprit(value, error)
    if isinstance(error, (TypeError, pickle.PicklingError, RecursionError)):
        return EncodeError(f"{where or 'the value'} cannot be pickled: {_line(error)}")
    if where:
        error.add_note(f"raised while pickling {where}")
    error.__cause__ = None
    return error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


def _culprit(value: object, error: Exception) -> str | None:
    # the path of the smallest part of the value that fails on its own
    if isinstance(error, RecursionError):
        return None
    for name, part in _call_parts(value):
        if not _pickles(part):
            return _descend(name, part)
    return None


def _call_parts(value: object) -> list[tuple[str, object]]:
    # A call is pickled as `(name, args, kwargs, ...)`; anything else is one part called result
    match value:
        case (_, tuple() as args, dict() as kwargs, *_):
            positional = [(f"args[{i}]", part) for i, part in enumerate(args)]
            return positional + list(kwargs.items())
        case _:
            return [("result", value)]


def _descend(name: str, value: object) -> str:
    budget = _MAX_SEARCH
    for _ in range(_MAX_DEPTH):
        culprit = None
        for child_name, child in _children(name, value):
            budget -= 1
            if budget < 0:
                return name
            if not _pickles(child):
                culprit = child_name, child
                break
        if culprit is None:
            return name
        name, value = culprit
    return name


def _children(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{i}]", part) for i, part in enumerate(value)]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, type):
        return [(f"{name}.{key}", part) for key, part in attributes.items()]
    return []


def _pickles(value: object) -> bool:
    try:
        cloudpickle.dumps(value, _PROTOCOL, buffer_callback=lambda _: None)
    except Exception:  # noqa: BLE001  any failure is the answer
        return False
    return True
