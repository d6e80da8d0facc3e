"""Displays that change: one of the front end for all ranks that show something in it.

Rules of the file: each rank has its own content, equal ones are drawn once; an id that a rank has
chosen means that rank's display and no other's. `clear_output` of a rank clears what this rank has
shown since its first one, in an area that belongs to the cell; what is further up may be others'
too and stays. No locks: whoever owns a display (a `CellOutput`) guards it.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from monarch_nb.core.errors.folding import fold_outputs
from monarch_nb.notebook.output.mime import (
    Content,
    composed,
    is_composable,
    signature,
    text_content,
    with_id,
)

if TYPE_CHECKING:
    from monarch_nb.control.api import OutputEvent

MAX_DISPLAYS = 256
"""Updates of displays that are older than so many others are not followed."""
MAX_ITEMS = 16
MAX_CHARS = 10_000

_RANDOM = re.compile(r"[0-9a-f]{32}")
"""What IPython makes up for `display_id=True`: another one on each rank."""


class Owner(Protocol):
    """What a display belongs to (a `CellOutput`)."""

    def add(self, event: OutputEvent) -> float | None: ...
    def flush(self) -> float | None: ...
    def settle(self) -> None: ...


class LiveDisplay:
    """A display and what each rank shows in it now."""

    def __init__(self, owner: Owner, total: int) -> None:
        self.owner = owner
        self.id = uuid.uuid4().hex
        self.is_shown = False
        self._total = total
        self._items: dict[int, list[Content]] = {}
        self._clears_next: set[int] = set()

    def put(self, rank: int, content: Content) -> None:
        """Show this instead of what the rank has shown."""
        self._items[rank] = [_shown(content)]

    def add(self, rank: int, content: Content) -> None:
        if rank in self._clears_next:
            self.clear(rank, wait=False)
        items = self._items.setdefault(rank, [])
        items.append(_shown(content))
        del items[:-MAX_ITEMS]

    def write(self, rank: int, text: str) -> None:
        if rank in self._clears_next:
            self.clear(rank, wait=False)
        items = self._items.get(rank)
        if items and isinstance(last := items[-1], _Printed):
            items.pop()
            text = last.text + text
        self._items.setdefault(rank, []).append(_Printed(text[-MAX_CHARS:]))

    def clear(self, rank: int, *, wait: bool) -> None:
        """Clear what the rank has shown, or do it when it shows the next."""
        if wait:
            self._clears_next.add(rank)
            return
        self._clears_next.discard(rank)
        self._items.pop(rank, None)

    def begin_anew(self) -> None:
        self.is_shown = False

    @property
    def ranks(self) -> set[int]:
        return set(self._items)

    def draw(self) -> list[Content]:
        """Return what to display, the last of it can be changed: now it is shown."""
        self.is_shown = True
        signatures = {
            rank: tuple(signature(item["data"]) for item in items)
            for rank, items in self._items.items()
        }
        groups = fold_outputs(signatures, self._total)
        *above, last = composed([(group.label, self._items[group.ranks[0]]) for group in groups])
        return [*above, with_id(last, self.id)]


class LiveDisplays:
    """All of a session, to find those that ranks want to update."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], LiveDisplay] = {}

    def find(self, event: OutputEvent) -> LiveDisplay | None:
        """Return the display that a rank's update is about."""
        if event.stream != "display" or event.content.get("type") != "update_display_data":
            return None
        return self._found.get((event.mesh, event.rank, display_id(event.content)))

    def remember(self, event: OutputEvent, live: LiveDisplay) -> None:
        key = event.mesh, event.rank, display_id(event.content)
        self._found.pop(key, None)
        self._found[key] = live
        if len(self._found) > MAX_DISPLAYS:
            del self._found[next(iter(self._found))]


class CellDisplays:
    """The changing displays of one cell."""

    def __init__(self, owner: Owner, known: LiveDisplays) -> None:
        self._owner = owner
        self._known = known
        self._places: dict[Hashable, LiveDisplay] = {}
        self._areas: dict[str, LiveDisplay] = {}
        self._cleared: dict[str, set[int]] = {}
        self._counts: Counter[Hashable] = Counter()
        self._is_wiped = False

    def place(self, event: OutputEvent) -> LiveDisplay:
        """Return where a display with an id goes: with those of that name, or as manyth, of other
        ranks.
        """
        name = display_id(event.content)
        name = "" if _RANDOM.fullmatch(name) else name
        self._counts[event.mesh, event.rank, name] += 1
        alone = () if is_composable(event.content["data"]) else (event.rank,)
        key = (event.mesh, name, self._counts[event.mesh, event.rank, name], *alone)
        live = self._places.get(key)
        if live is None:
            live = self._places[key] = LiveDisplay(self._owner, event.size)
        live.put(event.rank, event.content)
        self._known.remember(event, live)
        return live

    def area(self, event: OutputEvent) -> LiveDisplay | None:
        """Return where the rank shows things since it has cleared its output for the first time."""
        if event.rank in self._cleared.get(event.mesh, ()):
            return self._areas[event.mesh]
        return None

    def clear(self, event: OutputEvent) -> list[LiveDisplay]:
        """Clear what the rank has shown; return what has to be drawn again."""
        wait = bool(event.content.get("wait"))
        area = self._areas.setdefault(event.mesh, LiveDisplay(self._owner, event.size))
        self._cleared.setdefault(event.mesh, set()).add(event.rank)
        own = [live for live in self.everything() if event.rank in live.ranks]
        for live in own:
            live.clear(event.rank, wait=wait and live is area)
        return [live for live in own if not wait or live is not area]

    def wiped(self, mesh: str, ranks: set[int] | None) -> bool:
        """Tell whether these, all ranks of the cell, have now cleared their output for the first
        time.

        Then there is nothing above to be kept, and what changes is displayed anew.
        """
        if self._is_wiped or self._cleared.get(mesh) != ranks:
            return False
        self._is_wiped = True
        for live in self.everything():
            live.begin_anew()
        return True

    def everything(self) -> list[LiveDisplay]:
        return [*self._places.values(), *self._areas.values()]


class _Printed(dict[str, object]):
    def __init__(self, text: str) -> None:
        super().__init__(text_content(_settled(text).rstrip("\n")))
        self.text = text


def _shown(content: Content) -> Content:
    return {"data": content["data"], "metadata": content.get("metadata", {})}


def display_id(content: Content) -> str:
    """Return the id that the rank has chosen, or ""."""
    transient = content.get("transient")
    found = transient.get("display_id") if isinstance(transient, dict) else None
    return found if isinstance(found, str) else ""


def _settled(text: str) -> str:
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
