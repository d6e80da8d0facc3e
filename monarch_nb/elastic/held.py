"""What is a process's own, and no other rank knows: it is told to the controller whenever it
changes, for a process that may have to take its place.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from monarch_nb.core.wire import pickling
from monarch_nb.elastic.batches import Place
from monarch_nb.elastic.randomness import Randomness
from monarch_nb.elastic.state import State, batches_of

_BEGAN = "began"
_PLACE = "place"


class Held(NamedTuple):
    """Its random numbers, and where its loader stands, before a step."""

    randomness: Randomness
    place: Place | None

    @staticmethod
    def now(state: State) -> Held:
        batches = batches_of(state)
        return Held(Randomness.now(), None if batches is None else batches.next_place)

    @staticmethod
    def of(told: Mapping[str, str]) -> Held:
        """Return what `News` has told, all together."""
        found: dict[str, Any] = {
            name: pickling.loads(base64.b64decode(text)) for name, text in told.items()
        }
        where, began = found.pop(_PLACE), found.pop(_BEGAN)
        place = None if where is None else Place(where[0], where[1], began)
        return Held(Randomness(**found), place)

    def parts(self) -> dict[str, object]:
        """Return what changes together, by name."""
        place = self.place
        return {
            **self.randomness._asdict(),
            _PLACE: None if place is None else (place.epoch, place.batch),
            _BEGAN: None if place is None else place.began,
        }

    def take(self, state: State) -> None:
        """Hold this here."""
        self.randomness.restore()
        batches = batches_of(state)
        if batches is not None and self.place is not None:
            batches.go_to(self.place)


class News:
    """What has changed of what a process holds since it was told."""

    def __init__(self) -> None:
        self._told: dict[str, object] = {}

    def of(self, held: Held) -> dict[str, str]:
        """Return what has changed, as text by name; it counts as told."""
        parts = held.parts()
        new = {
            name: part
            for name, part in parts.items()
            if name not in self._told or self._told[name] != part
        }
        self._told |= new
        return {name: base64.b64encode(pickling.dumps(part)).decode() for name, part in new.items()}

    def forget(self) -> None:
        """Tell all the next time."""
        self._told.clear()
