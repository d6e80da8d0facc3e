"""Messages for the front end that wait to be sent: text, displays of ranks, drawings of our own.

Rule of the file: a message is made when its turn in the order is known; what it needs then is all
that is kept of it. Messages know how to send themselves, not when. Equal displays of ranks come
when each has computed its own, perhaps seconds apart: they are drawn once, and a rank joins one
only when all that it has shown before stands above it. Text and widgets are not joined. The cell's
output locks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Protocol

from monarch_nb.core.errors.folding import listed_ranks, rank_label
from monarch_nb.notebook.layouts.live_displays import LiveDisplay, display_id
from monarch_nb.notebook.output.mime import (
    Content,
    is_composable,
    labelled,
    plain_text,
    signature,
    with_id,
)
from monarch_nb.notebook.output.sinks import Sink

MAX_KEPT: Final = 64  # displays of a cell that can be joined; they may be megabytes

Joins = Callable[[int, int], bool]

MAX_TOKENS: Final = 256


class CommonDisplay:
    """A display and the ranks that have shown it; `place` is where it stands."""

    def __init__(self, ranks: Iterable[int], total: int, content: Content, place: int) -> None:
        self.ranks = set(ranks)
        self.place = place
        self.is_shown = False
        self._id = uuid.uuid4().hex
        self._total = total
        self._content = content

    def draw(self) -> list[Content]:
        """Return what to display, first the ranks' names, which can be changed: now it is shown."""
        self.is_shown = True
        first, *rest = labelled(rank_label(self.ranks, self._total), self._content)
        first = with_id(first, self._id)
        return [first, self._content] if rest else [first]  # a picture is not sent again


class CommonDisplays:
    """Those of one cell that can still be joined, by mesh and word (see `Tokens`)."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[CommonDisplay]] = {}
        self._count = 0

    def join(self, mesh: str, word: str, rank: int, joins: Joins) -> CommonDisplay | None:
        """Return the display that the rank joins by showing the same; None: it has to be shown.

        `joins(rank, place)` tells whether what the rank has shown is above that place, and if so
        takes note that it has shown something there.
        """
        for one in self._found.get((mesh, word), ()):
            if rank not in one.ranks and joins(rank, one.place):
                one.ranks.add(rank)
                return one
        return None

    def add(self, mesh: str, word: str, one: CommonDisplay) -> None:
        if self._count < MAX_KEPT:
            self._count += 1
            self._found.setdefault((mesh, word), []).append(one)

    def clear(self) -> None:
        self._found.clear()
        self._count = 0


def can_be_common(kind: str, content: Content) -> bool:
    """Tell whether it is a picture or a page, of no application of the front end's."""
    return kind == "display_data" and not plain_text(content) and is_composable(content["data"])


class Picture(Protocol):
    """What draws."""

    @property
    def deadline(self) -> float | None:
        """When there is something new that should be drawn; None while there is not."""

    def draw(self, now: float) -> Content:
        """Return what to show now."""


class Frame:
    """A place below the cell for a picture: shown once, redrawn from then on."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self._id = uuid.uuid4().hex
        self.is_up = False

    def message(self, content: Content) -> tuple[str, Content]:
        """Return the kind and content of the message that shows it."""
        kind = "update_display_data" if self.is_up else "display_data"
        self.is_up = True
        return kind, {"metadata": {}, **content, "transient": {"display_id": self._id}}


class _Fixed:
    def prepare(self) -> None:
        """Nothing: it does not change."""


class Text(_Fixed):
    """Text for one stream."""

    def __init__(self, stream: str, text: str) -> None:
        self.stream = stream
        self.parts = [text]

    def send(self, sink: Sink) -> None:
        sink.stream(self.stream, "".join(self.parts))


class Display(_Fixed):
    """A display message of these ranks of a mesh of `total`."""

    def __init__(
        self, kind: str, content: Content, ranks: Sequence[int] = (), total: int = 1
    ) -> None:
        self._label = rank_label(ranks, total)
        self._kind = kind
        self._content = content

    def send(self, sink: Sink) -> None:
        if self._kind == "clear_output":
            sink.display(self._kind, self._content)
            return
        for content in labelled(self._label, self._content):
            sink.display(self._kind, content)


class Drawing(_Fixed):
    """What a display shows from now on."""

    def __init__(self, frame: Frame, content: Content) -> None:
        self._kind, self._content = frame.message(content)

    def send(self, sink: Sink) -> None:
        sink.display(self._kind, self._content)


class LiveDrawing:
    """A display of ranks that changes, as it is when it is sent: first all, then what has an id."""

    def __init__(self, live: LiveDisplay | CommonDisplay) -> None:
        self.live = live
        self._kind = "display_data"
        self._contents: Sequence[Content] = ()

    def prepare(self) -> None:
        """Take its state; under the lock of the display's owner."""
        was_shown, self._contents = self.live.is_shown, self.live.draw()
        if was_shown:
            self._kind = "update_display_data"
            self._contents = [one for one in self._contents if display_id(one)]

    def send(self, sink: Sink) -> None:
        for content in self._contents:
            sink.display(self._kind, content)


class Tokens:
    """Displays pass the folder as words that stand for them, so that equal ones fold in order."""

    def __init__(self) -> None:
        self._words: dict[Hashable, str] = {}
        self._found: dict[str, tuple[str, Content] | LiveDisplay] = {}
        self._common = CommonDisplays()
        self._count = 0

    def of_message(self, kind: str, content: Content) -> str:
        """Return a word that is equal for equal messages."""
        return self._word(signature((kind, content)), (kind, content))

    def of_live(self, live: LiveDisplay) -> str:
        return self._word(live.id, live)

    def _word(self, key: Hashable, meant: tuple[str, Content] | LiveDisplay) -> str:
        word = self._words.get(key)
        if word is None:
            self._count += 1
            word = self._words[key] = f"display-{self._count}"
            self._found[word] = meant
            if len(self._words) > MAX_TOKENS:
                del self._found[self._words.pop(next(iter(self._words)))]
        return word

    def join(self, mesh: str, word: str, rank: int, joins: Joins) -> CommonDisplay | None:
        """Return the display of other ranks that the rank has joined with this word; see there."""
        return self._common.join(mesh, word, rank, joins)

    def display(self, line: str, mesh: str, total: int, place: int) -> Display | LiveDrawing | None:
        """Return the display for `[0-3] display-7`; None for a line of another kind."""
        label, _, word = line.rpartition(" ")
        found = self._found.get(word)
        if found is None:
            return None
        if isinstance(found, LiveDisplay):
            return LiveDrawing(found)
        ranks = listed_ranks(label.strip("[]"))
        if total == 1 or not can_be_common(*found):
            return Display(*found, ranks, total)
        common = CommonDisplay(ranks, total, found[1], place)
        self._common.add(mesh, word, common)
        return LiveDrawing(common)

    def wiped(self) -> None:
        """Let nobody join what has been shown."""
        self._common.clear()

    def clear(self) -> None:
        self._words.clear()
        self._found.clear()
        self._common.clear()


Message = Text | Display | Drawing | LiveDrawing


def drawing(frame: Frame, content: Content) -> list[Message]:
    """Return the message, or nothing for bars that came and went between two drawings."""
    return [Drawing(frame, content)] if frame.is_up or content["data"]["text/plain"] else []


def append_text(waiting: list[Message], stream: str, text: str) -> None:
    last = waiting[-1] if waiting else None
    if isinstance(last, Text) and last.stream == stream:
        last.parts.append(text)
    else:
        waiting.append(Text(stream, text))
