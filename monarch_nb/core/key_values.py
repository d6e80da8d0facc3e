"""Keys with values, and who waits for some of them: what a `torch.distributed.Store` means.

Rule: nobody polls. Whoever waits is kept with the keys, and named when the last of them comes.
Many wait for the same keys (all ranks for each other), so a wait is kept once for all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

W = TypeVar("W", bound=Hashable)
_LARGEST: Final = (1 << 63) - 1
Awaited = tuple[tuple[str, ...], tuple[str, ...]]
"""Keys that are waited for, and those of which one ends the wait, too."""


class Ended(NamedTuple, Generic[W]):
    """A wait that has ended for all of `who`; `missing`: keys without which it has."""

    who: list[W]
    keys: tuple[str, ...]
    missing: list[str]


class _Wait(Generic[W]):
    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.who: dict[W, None] = {}


class KeyValues(Generic[W]):
    """The keys of one place. What changes them returns the waits that this has ended."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._waits: dict[Awaited, _Wait[W]] = {}
        self._concerned: dict[str, set[Awaited]] = {}
        """Waits by each key that they name."""

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> list[Ended[W]]:
        """Raises `ValueError` where there are not as many values as keys."""
        self._values.update(dict(zip(keys, values, strict=True)))  # all or nothing
        return self._came(keys)

    def add(self, key: str, amount: int) -> tuple[int, list[Ended[W]]]:
        """Return the sum, too. Raises `ValueError` where there is no number, or it is too large."""
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError:
            raise ValueError(f"add: the value of {key!r} is no number") from None
        if abs(total) > _LARGEST:
            raise ValueError(f"add: the sum for {key!r} has more than 64 bits")
        return total, self.set([key], [str(total).encode()])

    def append(self, key: str, value: bytes) -> list[Ended[W]]:
        return self.set([key], [self._values.get(key, b"") + value])

    def compare_set(
        self, key: str, expected: bytes, desired: bytes
    ) -> tuple[bytes, list[Ended[W]]]:
        """Return the value that counts, too, as PyTorch's own stores do."""
        found = self._values.get(key, b"")
        if found == expected:
            return desired, self.set([key], [desired])
        return (found if key in self._values else expected), []

    def delete(self, key: str) -> bool:
        """Tell whether it was there. Whoever waits for it waits for it again."""
        for awaited in self._concerned.get(key, ()):
            if key in awaited[0]:
                self._waits[awaited].missing.add(key)
        return self._values.pop(key, None) is not None

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._values]

    def values(self, keys: Sequence[str]) -> list[bytes]:
        """Raises `KeyError` for one that is missing."""
        return [self._values[key] for key in keys]

    def __len__(self) -> int:
        return len(self._values)

    def wait(self, who: W, keys: Sequence[str], unless: Sequence[str]) -> list[Ended[W]]:
        """Keep who waits for these keys, or for one of `unless`; it ends now if that is there."""
        awaited = tuple(keys), tuple(unless)
        missing = self.missing(keys)
        if not missing or len(self.missing(unless)) < len(unless):
            return [Ended([who], awaited[0], missing)]
        if awaited not in self._waits:
            self._waits[awaited] = _Wait(set(missing))
            for key in {*keys, *unless}:
                self._concerned.setdefault(key, set()).add(awaited)
        self._waits[awaited].who[who] = None
        return []

    def leave(self, is_gone: Callable[[W], bool]) -> list[W]:
        """Let those wait no longer; returns them."""
        gone = []
        for awaited, wait in list(self._waits.items()):
            mine = [who for who in wait.who if is_gone(who)]
            for who in mine:
                del wait.who[who]
            gone += mine
            if not wait.who:
                self._forget(awaited)
        return gone

    def _came(self, keys: Sequence[str]) -> list[Ended[W]]:
        ended = []
        for key in keys:
            for awaited in list(self._concerned.get(key, ())):
                wait = self._waits[awaited]
                wait.missing.discard(key)
                if not wait.missing or key in awaited[1]:
                    self._forget(awaited)
                    ended.append(Ended(list(wait.who), awaited[0], self.missing(awaited[0])))
        return ended

    def _forget(self, awaited: Awaited) -> None:
        del self._waits[awaited]
        for key in {*awaited[0], *awaited[1]}:
            self._concerned[key].discard(awaited)
            if not self._concerned[key]:
                del self._concerned[key]
