"""The keys of the place where ranks meet, kept by the process that owns the mesh.

Rules: who waits for keys does not poll, the owner pushes the answer. The wait itself is in Python,
in slices, so that interrupts and deaths end it; any thread may wait, C++'s too.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from monarch_nb.core.wire.messages import stores as messages
from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.core.wire.messages.stores import Blob, Found, check_size

if TYPE_CHECKING:
    from monarch_nb.process.process import Proc

A = TypeVar("A")
SLICE_S: Final = 0.05
"""So late an interrupt of a thread that is not the main one ends its wait."""
ANSWER_S: Final = 30.0
"""What needs no keys to come is answered at once; the owner may be starved or stopped."""
_numbers: Final = itertools.count(1)


class Keys:
    """The keys of one place, or those of them that begin with a prefix; `owner()` is the process
    that keeps them. Raises `RuntimeError` where
    the owner refuses or has died, `TimeoutError` where it does not answer, `ValueError` for values
    that are too large."""

    def __init__(self, proc: Proc, owner: Callable[[], int], place: str, prefix: str = "") -> None:
        self._proc = proc
        self._owner = owner
        self._place = place
        self._prefix = prefix

    def under(self, name: str) -> Keys:
        """Return those under a name."""
        return Keys(self._proc, self._owner, self._place, f"{self._prefix}{name}/")

    def set(self, values: Mapping[str, bytes]) -> None:
        self._ask(self._setting(values))

    def put(self, values: Mapping[str, bytes]) -> None:
        """Set them, and wait for no answer. What is asked next finds them."""
        self._proc.control(self._owner(), self._setting(values))

    def add(self, key: str, amount: int) -> int:
        return self._ask(messages.AddTo(self._place, self._full(key), amount)).value

    def append(self, key: str, value: bytes) -> None:
        check_size(value)
        self._ask(messages.AppendTo(self._place, self._full(key), Blob(value)))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        check_size(desired)
        place, full = self._place, self._full(key)
        found = self._ask(messages.CompareAndSet(place, full, Blob(expected), Blob(desired)))
        return found.values[0]

    def delete(self, key: str) -> bool:
        return self._ask(messages.DeleteKey(self._place, self._full(key))).value > 0

    def forget(self, key: str) -> None:
        """Delete it, and wait for no answer."""
        self._proc.control(self._owner(), messages.DeleteKey(self._place, self._full(key)))

    def count(self) -> int:
        """Return how many keys the place has, whatever they begin with."""
        return self._ask(messages.CountKeys(self._place)).value

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return those that are not there."""
        wanted = messages.CheckKeys(self._place, [self._full(key) for key in keys])
        return self._own(self._ask(wanted).missing)

    def wait_for(
        self, keys: Sequence[str], limit_s: float, check: Callable[[], None], leave: Sequence[int]
    ) -> Found:
        """Wait until all are there, or one of the ranks `leave` has left the place.

        `check` is called every now and then, and may raise. Raises `TimeoutError` after `limit_s`.
        """
        number, unless = next(_numbers), [messages.left_key(rank) for rank in leave]
        full = [self._full(key) for key in keys]
        wanted = messages.AwaitKeys(self._place, number, full, unless)
        try:
            found = self._ask(wanted, limit_s, check)
        except BaseException:  # an interrupt, too
            self._proc.control(self._owner(), messages.LeaveWait(self._place, number))
            raise
        return Found(self._own(found.missing), found.values)

    def left(self, ranks: Sequence[int]) -> list[int]:
        """Return those of these ranks that have left the place."""
        by_key = {messages.left_key(rank): rank for rank in ranks}
        there = set(self._ask(messages.CheckKeys(self._place, list(by_key))).missing)
        return [rank for key, rank in by_key.items() if key not in there]

    def leave(self, rank: int, size: int) -> None:
        """Say that this rank is done here. When all `size` are, the keys are gone."""
        self._proc.control(self._owner(), messages.LeavePlace(self._place, rank, size))

    def _ask(
        self,
        wanted: Request[A],
        limit_s: float = ANSWER_S,
        check: Callable[[], None] = lambda: None,
    ) -> A:
        answers: list[A | Refused] = []
        arrived = threading.Event()

        def heard(answer: A | Refused) -> None:
            answers.append(answer)
            arrived.set()

        deadline = time.monotonic() + limit_s
        self._proc.ask(self._owner(), wanted, heard)
        self._proc.links.flush()
        while not arrived.wait(SLICE_S):
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the owner of the mesh has not answered within {limit_s:g} s")
        [answer] = answers
        if not isinstance(answer, Refused):
            return answer
        raise RuntimeError(f"the store of the mesh: {answer.error}")

    def _setting(self, values: Mapping[str, bytes]) -> messages.SetKeys:
        for value in values.values():
            check_size(value)
        keys = [self._full(key) for key in values]
        return messages.SetKeys(self._place, keys, [Blob(each) for each in values.values()])

    def _full(self, key: str) -> str:
        return self._prefix + key

    def _own(self, keys: Sequence[str]) -> list[str]:
        return [key.removeprefix(self._prefix) for key in keys]
