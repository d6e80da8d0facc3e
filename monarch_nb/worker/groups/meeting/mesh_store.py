"""A `torch.distributed.Store` over the control channel: no port is opened.

PyTorch calls it from the thread that makes a group, and from threads of C++ that take Python's lock
for it. Such an object has to live as long as a group: PyTorch itself keeps its C++ half only.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Store

if TYPE_CHECKING:
    from monarch_nb.worker.groups.meeting.keys import Keys

WAIT: Final = "store.wait"
Waiting = Callable[[], AbstractContextManager[Callable[[], None]]]


class StoreCalls:
    """Implements what PyTorch calls of a store. `waiting()` is held while it waits, and gives what
    is called every now and then and may raise."""

    timeout: dt.timedelta  # PyTorch's class has it

    def __init__(self, keys: Keys, waiting: Waiting) -> None:
        super().__init__()
        self._keys = keys
        self._waiting = waiting

    def set(self, key: str, value: str | bytes) -> None:
        self._keys.set({key: _bytes(value)})

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        return self._keys.add(key, amount)

    def append(self, key: str, value: str | bytes) -> None:
        self._keys.append(key, _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        return not self._keys.missing(keys)

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        self._found(keys, self.timeout if timeout is None else timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._found(keys, self.timeout)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._keys.set(dict(zip(keys, map(_bytes, values), strict=True)))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(self._keys.compare_set(key, _bytes(expected), _bytes(desired)))

    def delete_key(self, key: str) -> bool:
        return self._keys.delete(key)

    def num_keys(self) -> int:
        return self._keys.count()

    def clone(self) -> StoreCalls:
        """Return this one: it has no connection of its own that another thread would need."""
        return self

    def has_extended_api(self) -> bool:
        return True

    deleteKey = delete_key  # noqa: N815  so C++ calls them
    getNumKeys = num_keys  # noqa: N815

    def _found(self, keys: Sequence[str], timeout: dt.timedelta) -> list[bytes]:
        limit_s = timeout.total_seconds()
        with self._waiting() as check:
            try:
                found = self._keys.wait_for(keys, limit_s, check, leave=())
            except TimeoutError:
                missing = ", ".join(map(repr, self._keys.missing(keys)))
                error: type[Exception] = c10d.load("torch.distributed").DistStoreError
                raise error(f"wait timeout after {timeout}, keys: {missing}") from None
        return [bytes(value) for value in found.values]


def make(keys: Keys, waiting: Waiting, timeout: dt.timedelta) -> Store:
    """Make a store of these keys. Whoever uses it in C++ alone has to keep it."""
    made: Any = _store_class()(keys, waiting)
    made.set_timeout(timeout)
    store: Store = made
    return store


@functools.cache
def _store_class() -> Any:
    base = c10d.load("torch.distributed").Store
    return type("MeshStore", (StoreCalls, base), {"__doc__": StoreCalls.__doc__})


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
