"""What ranks send for one cell, on its way there: folded, in order, ten times a second at most.

Rules of the file: the first text after a pause goes out at once, by the inbox thread that brought
it; what must wait is sent by the flusher thread, and at the end of the cell by the main thread, so
that nothing comes after the cell's reply that came before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from monarch_nb.core import lines
from monarch_nb.core.streams import WINDOW_S, StreamFolder
from monarch_nb.notebook.live_displays import CellDisplays, LiveDisplay, LiveDisplays, display_id
from monarch_nb.notebook.outlets import Outlet
from monarch_nb.notebook.pieces import Display, Drawing, Text, Tokens, with_id

FLUSH_S = 0.1


class CellOutput:
    """Everything one cell has still to show."""

    def __init__(
        self,
        outlet: Outlet,
        now: Callable[[], float] = time.monotonic,
        live: LiveDisplays | None = None,
    ) -> None:
        self._outlet = outlet
        self._now = now
        self._lock = threading.Lock()
        self._sending = threading.RLock()  # taken first; sending may wait, adding may not
        self._is_sending = False
        self._folders: dict[str, StreamFolder] = {}
        self._running: dict[str, set[int]] = {}
        self._expected: dict[str, set[int]] = {}
        self._known = live or LiveDisplays()
        self._live = CellDisplays(self, self._known)
        self._redraws: dict[LiveDisplay, float] = {}
        self._tokens = Tokens()
        self._waiting: list[Text | Display | Drawing] = []
        self._next_flush_s = 0.0

    @property
    def outlet(self) -> Outlet:
        """Where it goes."""
        return self._outlet

    def expect(self, mesh: str, ranks: Iterable[int], total: int) -> None:
        """These ranks of the mesh begin to run the cell: equal lines wait for all of them."""
        with self._lock:
            self._running[mesh], self._expected[mesh] = set(ranks), set(ranks)
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
            text = self._word(event, now) if event.stream == "display" else event.text
            if event.stream != "display" and (area := self._live.area(event)):
                area.write(event.rank, text)
                self._redraw(area, now)
            elif text:
                folder = self._folder(event.mesh, event.size)
                self._texts(folder.feed(event.rank, event.stream, text, now))
            return self._due()

    def write(self, stream: str, text: str) -> None:
        """A line of the controller's own, in order with what the ranks said."""
        with self._lock:
            self._append_text(stream, text)

    def follow(self, stream: str, text: str) -> bool:
        """Queue what the cell itself prints, if the ranks' words before it have not been sent."""
        if not self._folders:
            return False
        with self._lock:
            self._release()
            if not self._waiting and not self._is_sending:
                return False
            self._append_text(stream, text)
            return True

    def settle(self) -> None:
        """The cell shows something: first what ranks have said before."""
        if self._folders:
            with self._lock:
                self._release()
            self._send()

    def show(self, content: Mapping[str, Any], display_id: str = "") -> None:
        """A display of the controller's own, now."""
        with self._sending:
            self._send()
            self._outlet.display("display_data", with_id(content, display_id))

    def redraw(self, content: Mapping[str, Any], display_id: str) -> None:
        """Another content for a display that was shown under this id."""
        with self._sending:
            self._outlet.display("update_display_data", with_id(content, display_id))

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""
        now = self._now()
        with self._lock:
            for folder in self._folders.values():
                if (at := folder.deadline) is not None and at <= now:
                    self._texts(folder.tick(now))
            self._drawings(now)
        if now >= self._next_flush_s:
            self._send()
        with self._lock:
            return self._due()

    def end(self) -> None:
        """The cell ends: send everything."""
        now = self._now()
        with self._lock:
            for folder in self._folders.values():
                self._texts(folder.flush(now))
            self._drawings(float("inf"))
        self._send()
        self._tokens.clear()

    def _folder(self, mesh: str, total: int) -> StreamFolder:
        if mesh not in self._folders:
            self._folders[mesh] = StreamFolder(range(total), total)
        return self._folders[mesh]

    def _word(self, event: Any, now: float) -> str:
        """What passes the folder for a display; nothing for what changes one that is there."""
        content = {"metadata": {}, "transient": {}, **event.content}
        kind = content.pop("type", "display_data")
        if not self._outlet.redraws:
            content["transient"] = {}
            return self._tokens.of_message("display_data", content) if "data" in content else ""
        if kind == "update_display_data":
            if live := self._known.find(event):
                live.put(event.rank, event.content)
                self._redraw(live, now)
            return ""
        if kind == "clear_output" and event.size > 1:
            self._clear(event, now)
            return ""
        if display_id(content):
            return self._tokens.of_live(self._live.place(event)) + "\n"
        if area := self._live.area(event):
            area.add(event.rank, event.content)
            self._redraw(area, now)
            return ""
        return self._tokens.of_message(kind, content) + "\n"

    def _clear(self, event: Any, now: float) -> None:
        """A rank clears what it has shown; when all have, it is the cell that is cleared."""
        changed = self._live.clear(event)
        if len(self._folders) <= 1 and self._live.wiped(event.mesh, self._expected.get(event.mesh)):
            self._release()
            wait = {"wait": bool(event.content.get("wait"))}
            self._waiting.append(Display("", "clear_output", wait))
            changed = self._live.everything()
        for live in changed:
            self._redraw(live, now)

    def _redraw(self, live: LiveDisplay, now: float) -> None:
        """Soon: other ranks are about to say the same."""
        self._redraws.setdefault(live, now + WINDOW_S)

    def _drawings(self, now: float) -> None:
        for live in [live for live, at in self._redraws.items() if at <= now]:
            del self._redraws[live]
            if live.is_shown or live.ranks:
                self._waiting.append(Drawing(live))

    def _release(self) -> None:
        now = self._now()
        for folder in self._folders.values():
            self._texts(folder.release(now))

    def _texts(self, texts: Iterable[lines.Text]) -> None:
        for stream, text in texts:
            if stream != "display":
                self._append_text(stream, text)
                continue
            for line in text.splitlines():
                if display := self._tokens.display(line):
                    self._waiting.append(display)
                else:  # how many were hidden
                    self._append_text("stdout", f"{line}\n")

    def _append_text(self, stream: str, text: str) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Text) and last.stream == stream:
            last.parts.append(text)
        else:
            self._waiting.append(Text(stream, text))

    def _send(self) -> None:
        with self._sending:
            with self._lock:
                sent, self._waiting = self._waiting, []
                self._is_sending = bool(sent)
                for one in sent:
                    one.prepare()
                if sent:
                    self._next_flush_s = self._now() + FLUSH_S
            for one in sent:
                one.send(self._outlet)
            self._is_sending = False

    def _due(self) -> float | None:
        times = [at for folder in self._folders.values() if (at := folder.deadline) is not None]
        if self._waiting:
            times.append(self._next_flush_s)
        times += self._redraws.values()
        return min(times, default=None)


class Flushed(Protocol):
    """Something that has to be sent a little later."""

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""


class Flusher:
    """One thread that flushes the outputs that are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Flushed, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def due(self, output: Flushed, at_s: float | None) -> None:
        """Flush the output at that time (`time.monotonic`).

        What is due already is sent by the caller: when an answer of the same rank is handed on
        next, what the rank printed before it is on its way.
        """
        if at_s is not None and at_s <= time.monotonic():
            at_s = self._flushed(output)
        if at_s is not None:
            self._schedule(output, at_s)

    def _schedule(self, output: Flushed, at_s: float) -> None:
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
                if (at_s := self._flushed(output)) is not None:
                    self._schedule(output, at_s)

    def _flushed(self, output: Flushed) -> float | None:
        try:
            return output.flush()
        except Exception:  # a display that is no JSON, a front end that left
            logging.getLogger("monarch_nb").exception("output of ranks could not be shown")
            return None

    def _next(self) -> list[Flushed] | None:
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
