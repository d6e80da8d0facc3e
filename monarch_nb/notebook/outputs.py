"""What ranks send for one cell, on its way to the cell: folded, in order, at most ten times a second.

Rules of the file: the inbox thread only adds; sending is done by the flusher thread while the cell runs and by the
main thread at its end. The first text after a pause goes out at once. Nothing is lost: what has not been sent when a
cell ends is sent before its reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from monarch_nb.core.folding import rank_label
from monarch_nb.core.streams import WINDOW_S, StreamFolder
from monarch_nb.notebook.bundles import labelled, signature
from monarch_nb.notebook.outlets import Outlet

FLUSH_S = 0.1


class _Display:
    """A display message of some ranks; waits a little for equal ones."""

    def __init__(self, rank: int, total: int, kind: str, content: Any, ready_s: float) -> None:
        self.ranks = {rank}
        self.total = total
        self.kind = kind
        self.content = content
        self.ready_s = ready_s
        self._signature = signature((kind, content))

    def absorbs(self, other: _Display) -> bool:
        """Take in an equal message of another rank."""
        if self._signature != other._signature or self.ranks & other.ranks:
            return False
        self.ranks |= other.ranks
        return True

    def send(self, outlet: Outlet) -> None:
        if self.kind != "display_data":
            outlet.display(self.kind, self.content)
            return
        label = rank_label(self.ranks, self.total)
        for data in labelled(label, self.content["data"]):
            content = {**self.content, "data": data}
            content.setdefault("metadata", {})
            content.setdefault("transient", {})
            outlet.display(self.kind, content)


class _Text:
    ready_s = 0.0

    def __init__(self, stream: str, text: str) -> None:
        self.stream = stream
        self.parts = [text]

    def send(self, outlet: Outlet) -> None:
        outlet.stream(self.stream, "".join(self.parts))


class CellOutput:
    """Everything one cell has still to show."""

    def __init__(self, outlet: Outlet, now: Callable[[], float] = time.monotonic) -> None:
        self._outlet = outlet
        self._now = now
        self._lock = threading.Lock()
        self._folders: dict[str, StreamFolder] = {}
        self._running: dict[str, set[int]] = {}
        self._waiting: list[_Text | _Display] = []
        self._next_flush_s = 0.0

    def expect(self, mesh: str, ranks: Iterable[int], total: int) -> None:
        """These ranks of the mesh begin to run the cell: equal lines wait for all of them."""
        with self._lock:
            self._running[mesh] = set(ranks)
            self._folders[mesh] = StreamFolder(self._running[mesh], total)

    def finish(self, mesh: str, ranks: Iterable[int]) -> None:
        """These ranks have ended the cell: nobody waits for their lines any more."""
        with self._lock:
            folder = self._folders.get(mesh)
            for rank in self._running.get(mesh, set()).intersection(ranks):
                self._running[mesh].discard(rank)
                if folder is not None:
                    self._texts(folder.finish(rank, self._now()))

    def add(self, event: Any) -> float | None:
        """Take an output event. Returns when `flush` has something to do."""
        now = self._now()
        with self._lock:
            if event.stream == "display":
                self._display(event, now)
            else:
                folder = self._folder(event.mesh, event.size)
                self._texts(folder.feed(event.rank, event.stream, event.text, now))
            return self._due()

    def write(self, stream: str, text: str) -> None:
        """A line of the controller's own, in order with what the ranks said."""
        with self._lock:
            self._append_text(stream, text)

    def show(self, data: Mapping[str, Any]) -> None:
        """A display of the controller's own, now."""
        with self._lock:
            self._send(float("inf"))
            self._outlet.display("display_data", {"data": data, "metadata": {}, "transient": {}})

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""
        now = self._now()
        with self._lock:
            for folder in self._folders.values():
                if (at := folder.deadline) is not None and at <= now:
                    self._texts(folder.tick(now))
            if now >= self._next_flush_s:
                self._send(now)
            return self._due()

    def end(self) -> None:
        """The cell ends: send everything."""
        now = self._now()
        with self._lock:
            for folder in self._folders.values():
                self._texts(folder.flush(now))
            self._send(float("inf"))

    def _folder(self, mesh: str, total: int) -> StreamFolder:
        if mesh not in self._folders:
            self._folders[mesh] = StreamFolder(range(total), total)
        return self._folders[mesh]

    def _texts(self, texts: Iterable[Any]) -> None:
        for stream, text in texts:
            self._append_text(stream, text)

    def _append_text(self, stream: str, text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, _Text) and last.stream == stream:
            last.parts.append(text)
        else:
            self._waiting.append(_Text(stream, text))

    def _display(self, event: Any, now: float) -> None:
        if (folder := self._folders.get(event.mesh)) is not None:
            self._texts(folder.flush(now))  # what the rank printed before comes before
        content = dict(event.content)
        kind = content.pop("msg_type", "display_data")
        one = self._folded(_Display(event.rank, event.size, kind, content, now + WINDOW_S))
        if one.ranks >= self._running.get(event.mesh, {-1}) or event.size == 1:
            one.ready_s = 0.0  # nobody else will send it

    def _folded(self, new: _Display) -> _Display:
        for one in reversed(self._waiting):
            if not isinstance(one, _Display):
                break
            if one.absorbs(new):
                return one
        self._waiting.append(new)
        return new

    def _send(self, until_s: float) -> None:
        count = 0
        for one in self._waiting:
            if one.ready_s > until_s:
                break
            one.send(self._outlet)
            count += 1
        if count:
            del self._waiting[:count]
            self._next_flush_s = self._now() + FLUSH_S

    def _due(self) -> float | None:
        times = [at for folder in self._folders.values() if (at := folder.deadline) is not None]
        if self._waiting:
            times.append(max(self._waiting[0].ready_s, self._next_flush_s))
        return min(times, default=None)


class Flusher:
    """One thread that flushes the outputs that are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[CellOutput, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, output: CellOutput, at_s: float) -> None:
        """Flush the output at that time (`time.monotonic`), or earlier if that was asked before."""
        with self._changed:
            before = min(self._due.values(), default=float("inf"))
            self._due[output] = min(at_s, self._due.get(output, at_s))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="monarch-flusher", daemon=True
                )
                self._thread.start()
            if at_s < before:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            for output in due:
                if (at_s := output.flush()) is not None:
                    self.schedule(output, at_s)

    def _next(self) -> list[CellOutput] | None:
        """The outputs that are due, as soon as there is one; None at the end."""
        with self._changed:
            while not self._closed:
                first = min(self._due.values(), default=None)
                now = time.monotonic()
                if first is not None and first <= now:
                    due = [output for output, at_s in self._due.items() if at_s <= now]
                    for output in due:
                        del self._due[output]
                    return due
                self._changed.wait(None if first is None else first - now)
        return None
