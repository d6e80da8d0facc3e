"""What cells have shown, kept for a page that is loaded while they run, or after that.

Rules of the file: it follows what the kernel sends below its cells, as JupyterLab's output area
does: text of one stream is one output, a display that changes is its last state, what was cleared
is gone. Any thread; it neither waits nor sends. Memory is bounded: cells that have ended go first,
then the beginning of the cell that runs, and it says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Content = Mapping[str, Any]
Json = dict[str, Any]

MAX_BYTES: Final = 8_000_000  # characters of all cells together
MAX_CELLS: Final = 32
MAX_IDS: Final = 1_000
"""Messages of a cell that a page may get twice: they were on their way when it asked."""

_SHOWN: Final = {"stream", "display_data", "execute_result", "error"}
KINDS: Final = {*_SHOWN, "update_display_data", "clear_output", "execute_input"}
"""Messages that change what stands below a cell."""


class _Text:
    """What was written to one stream, in pieces of whole lines."""

    id = ""

    def __init__(self, content: Content) -> None:
        self._name = content["name"]
        self._pieces: deque[str] = deque()
        self._line = ""
        self.size = 0
        self.joins("stream", content)

    def joins(self, kind: str, content: Content) -> bool:
        """Add text of the same stream; False for anything else."""
        if kind != "stream" or content["name"] != self._name:
            return False
        self.size -= len(self._line)
        text = self._line + content["text"]
        lines = text.split("\n")
        if "\r" in text:
            lines = [_overwritten(line) for line in lines]
        self._line = lines.pop()
        if lines:
            self._pieces.append("\n".join([*lines, ""]))
            self.size += len(self._pieces[-1])
        self.size += len(self._line)
        return True

    def drop(self) -> None:
        """Let the first of it go."""
        if self._pieces:
            self.size -= len(self._pieces.popleft())
        else:
            self._line, self.size = "", 0

    def to_json(self) -> Json:
        text = "".join([*self._pieces, self._line])
        return {"output_type": "stream", "name": self._name, "text": text}


class _Display:
    """A display, a result or an error; `id` is what it is changed by."""

    def __init__(self, kind: str, content: Content) -> None:
        self._json = {"output_type": kind, **content}
        self.id = _display_id(content)
        self.size = _size(content)

    def joins(self, _kind: str, _content: Content) -> bool:
        return False

    def change(self, content: Content) -> None:
        self._json |= {"data": content["data"], "metadata": content.get("metadata", {})}
        self.size = _size(self._json)

    def drop(self) -> None:
        self.size = 0

    def to_json(self) -> Json:
        return self._json


class _Cell:
    """A cell that was run by a page's request."""

    def __init__(self, cell_id: str, request: Content, now: float) -> None:
        header = request["header"]
        self._told = {
            "id": cell_id,
            "message": str(header.get("msg_id")),
            "session": str(header.get("session")),
            "code": str(request.get("content", {}).get("code")),
        }
        self.is_running = True
        self.changed_s = now
        self.number: int | None = None
        self.size = 0
        self.outputs: deque[_Text | _Display] = deque()
        self._ids: deque[str] = deque(maxlen=MAX_IDS)
        self._clears_next = False
        self._dropped = 0

    def take(self, kind: str, content: Content, message: str, now: float) -> None:
        """Follow a message of its own; `message` is its id."""
        self._ids.append(message)
        self.changed_s = now
        if kind == "execute_input":
            self.number = content.get("execution_count")
        elif kind == "clear_output" and content.get("wait"):
            self._clears_next = True
        elif kind == "clear_output":
            self._clear()
        elif kind in _SHOWN:
            self._show(kind, content)

    def _clear(self) -> None:
        self.outputs.clear()
        self.size = self._dropped = 0
        self._clears_next = False

    def _show(self, kind: str, content: Content) -> None:
        if self._clears_next:
            self._clear()
        last = self.outputs[-1] if self.outputs else None
        self.size -= last.size if last else 0
        if last is None or not last.joins(kind, content):
            self.size += last.size if last else 0
            last = _Text(content) if kind == "stream" else _Display(kind, content)
            self.outputs.append(last)
        self.size += last.size

    def change(self, content: Content) -> None:
        """Draw the displays of that name anew, whichever cell has sent it."""
        for one in self.outputs:
            if isinstance(one, _Display) and one.id == _display_id(content):
                self.size -= one.size
                one.change(content)
                self.size += one.size

    def drop_first(self) -> None:
        first = self.outputs[0]
        before = first.size
        first.drop()
        self.size -= before - first.size
        self._dropped += before - first.size
        if not first.size:
            self.outputs.popleft()

    def to_json(self) -> Json:
        """Return what a page is told; `messages` are the ids of the last that are in it."""
        return {
            **self._told,
            "running": self.is_running,
            "number": self.number,
            "outputs": [*self._note(), *(one.to_json() for one in self.outputs)],
            "clears": self._clears_next,
            "messages": list(self._ids),
        }

    def _note(self) -> Iterator[Json]:
        if self._dropped:
            text = (
                f"... the first {max(self._dropped // 1_000_000, 1)} MB of this cell's output are "
                f"not shown: the page was loaded again, and the kernel keeps the last "
                f"{MAX_BYTES // 1_000_000} MB\n"
            )
            yield {"output_type": "stream", "name": "stderr", "text": text}


class KeptOutputs:
    """The cells of a kernel that ran last, by the message that ran them."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._cells: dict[str, _Cell] = {}

    def begin(self, request: Content) -> None:
        """Keep from now on what is shown for this request to run a cell, if a page has sent it."""
        header, cell_id = request.get("header", {}), request.get("metadata", {}).get("cellId")
        if isinstance(cell_id, str):
            with self._lock:
                self._cells[header.get("msg_id")] = _Cell(cell_id, request, self._now())
                while len(self._cells) > MAX_CELLS:
                    del self._cells[next(iter(self._cells))]

    def end(self, request: Content) -> None:
        """Note that the cell has run. What comes later is kept, too."""
        with self._lock:
            if cell := self._cells.get(request.get("header", {}).get("msg_id")):
                cell.is_running = False
                cell.changed_s = self._now()

    def take(self, kind: str, content: Content, message: str, parent: str) -> None:
        """Follow a message that the kernel is about to send, below the cell of `parent`."""
        with self._lock:
            if cell := self._cells.get(parent):
                cell.take(kind, content, message, self._now())
            if kind in ("display_data", "update_display_data") and _display_id(content):
                for each in self._cells.values():
                    each.change(content)
            self._make_room()

    def since(self, time_s: float) -> list[Json]:
        """Return the cells that run, and those that have changed since then (`time.time`)."""
        with self._lock:
            cells = self._cells.values()
            return [one.to_json() for one in cells if one.is_running or one.changed_s > time_s]

    def _make_room(self) -> None:
        while sum(one.size for one in self._cells.values()) > MAX_BYTES:
            ended = [key for key, one in self._cells.items() if not one.is_running]
            if ended:
                del self._cells[ended[0]]
            else:
                next(one for one in self._cells.values() if one.outputs).drop_first()


def _overwritten(line: str) -> str:
    # What is seen of a line that goes back to its start
    *parts, last = line.split("\r")
    seen = ""
    for part in [*parts, last]:
        seen = part + seen[len(part) :]
    return seen if last or not parts else f"{seen}\r"


def _display_id(content: Content) -> str:
    transient = content.get("transient")
    return str(transient.get("display_id") or "") if isinstance(transient, Mapping) else ""


def _size(value: object) -> int:
    # Of the texts in it
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8
