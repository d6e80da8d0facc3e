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

from monarch_nb.core.lines import Text
from monarch_nb.core.streams import StreamFolder
from monarch_nb.notebook.bundles import Content, plain_text
from monarch_nb.notebook.layouts import FOLD, Layout
from monarch_nb.notebook.messages import Message, Tokens, append_text, drawing
from monarch_nb.notebook.outlets import Outlet
from monarch_nb.notebook.pictures import Frame
from monarch_nb.notebook.progress import Bars
from monarch_nb.notebook.sections import Sections

FLUSH_S = 0.1


class CellOutput:
    """Everything one cell has still to show."""

    def __init__(self, outlet: Outlet, now: Callable[[], float] = time.monotonic) -> None:
        self.outlet = outlet
        self._now = now
        self._lock = threading.Lock()
        self._sending = threading.RLock()  # taken first; sending may wait, adding may not
        self._is_sending = False
        self._folders: dict[str, StreamFolder] = {}
        self._running: dict[str, set[int]] = {}
        self._tokens = Tokens()
        self._waiting: list[Message] = []
        self._layouts: dict[str, Layout] = {}
        self._held: dict[str, list[Message]] = {}  # until the cell has ended
        self._sections: dict[str, Sections] = {}
        self._bars = Bars()
        self._frames = [Frame(self._bars)]
        self._next_flush_s = 0.0

    @property
    def sent_s(self) -> float:
        """When something of it was last sent (`time.monotonic`); 0.0 if nothing was yet."""
        return max(self._next_flush_s - FLUSH_S, 0.0)

    def expect(
        self,
        mesh: str,
        ranks: Iterable[int],
        total: int,
        layout: Layout = FOLD,
        number: int = 0,
    ) -> None:
        """These ranks of the mesh begin to run the cell with this number: equal lines wait for all
        of them. How they are shown is asked for by the layout, until `conclude`."""
        with self._lock:
            shown = [rank for rank in ranks if layout.only in (None, rank)]
            self._running[mesh] = set(shown)
            self._folders[mesh] = StreamFolder(shown, total)
            self._layouts[mesh] = layout
            if not layout.streams:
                self._held[mesh] = []
            if layout.has_sections:
                self._sections[mesh] = Sections(layout.kind, shown, total, number)
                self._frames.append(Frame(self._sections[mesh]))

    def conclude(self, mesh: str, results: Mapping[int, Content]) -> dict[int, Content]:
        """The ranks have ended the cell, with these results: what the layout has held back is
        shown. Returns the results that are to be shown below."""
        now = self._now()
        with self._lock:
            layout = self._layouts.pop(mesh, FOLD)
            left = {rank: one for rank, one in results.items() if layout.only in (None, rank)}
            if mesh in self._folders:
                self._texts(mesh, self._folders[mesh].flush(now))
            if sections := self._sections.pop(mesh, None):
                for rank, one in list(left.items()):
                    if (text := plain_text(one)) and sections.conclude(rank, text):
                        del left[rank]
                self._waiting += self._last_drawing(sections)
            self._waiting += self._held.pop(mesh, [])
            self._bars.stop(mesh, now)
        return left

    def finish(self, mesh: str, ranks: Iterable[int]) -> None:
        """These ranks have ended the cell: nobody waits for their lines any more."""
        with self._lock:
            folder = self._folders.get(mesh)
            for rank in self._running.get(mesh, set()).intersection(ranks):
                self._running[mesh].discard(rank)
                if folder is not None:
                    self._texts(mesh, folder.finish(rank, self._now()))

    def add(self, event: Any) -> float | None:
        """Take an output event. Returns when `flush` has something to do."""
        now = self._now()
        with self._lock:
            if self._layouts.get(event.mesh, FOLD).only in (None, event.rank):
                self._add(event, now)
            return self._due()

    def _add(self, event: Any, now: float) -> None:
        if event.stream == "progress":
            self._bars.add(event.mesh, event.rank, event.size, event.content, now)
            return
        is_display = event.stream == "display"
        sections = self._sections.get(event.mesh)
        said = plain_text(event.content) if is_display else event.text
        if sections and said and sections.add(event.rank, event.stream, said, now):
            return
        text = self._word(event.content) if is_display else event.text
        folder = self._folder(event.mesh, event.size)
        self._texts(event.mesh, folder.feed(event.rank, event.stream, text, now))

    def write(self, stream: str, text: str) -> None:
        """A line of the controller's own, in order with what the ranks said."""
        with self._lock:
            append_text(self._waiting, stream, text)

    def follow(self, stream: str, text: str) -> bool:
        """Queue what the cell itself prints, if the ranks' words before it have not been sent."""
        if not self._folders:
            return False
        with self._lock:
            self._release()
            if not self._waiting and not self._is_sending:
                return False
            append_text(self._waiting, stream, text)
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
            self.outlet.display("display_data", _own(content, display_id))

    def redraw(self, content: Mapping[str, Any], display_id: str) -> None:
        """Another content for a display that was shown under this id."""
        with self._sending:
            self.outlet.display("update_display_data", _own(content, display_id))

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""
        now = self._now()
        with self._lock:
            for mesh, folder in self._folders.items():
                if (at := folder.deadline) is not None and at <= now:
                    self._texts(mesh, folder.tick(now))
            if now >= self._next_flush_s:
                self._draw(now)
        if now >= self._next_flush_s:
            self._send()
        with self._lock:
            return self._due()

    def end(self) -> None:
        """The cell ends: send everything."""
        now = self._now()
        with self._lock:
            for mesh, folder in self._folders.items():
                self._texts(mesh, folder.flush(now))
            if self.outlet.redraws or not self._layouts:  # a terminal gets the bars once
                self._draw_bars(now)
        self._send()
        self._tokens.clear()

    def _folder(self, mesh: str, total: int) -> StreamFolder:
        if mesh not in self._folders:
            self._folders[mesh] = StreamFolder(range(total), total)
        return self._folders[mesh]

    def _word(self, content: Mapping[str, Any]) -> str:
        message = {"metadata": {}, "transient": {}, **content}
        return self._tokens.word(message.pop("type", "display_data"), message) + "\n"

    def _release(self) -> None:
        now = self._now()
        for mesh, folder in self._folders.items():
            self._texts(mesh, folder.release(now))

    def _draw(self, now: float) -> None:
        """Draw the pictures that have changed."""
        for frame in self._moving():
            at = frame.picture.deadline
            if at is not None and at <= now:
                self._waiting += drawing(frame, frame.picture.draw(now))

    def _draw_bars(self, now: float) -> None:
        """Draw the last state of the bars."""
        if self._bars.deadline is not None:
            self._waiting += drawing(self._frames[0], self._bars.draw(now))

    def _moving(self) -> list[Frame]:
        """The pictures that are drawn while the cell runs."""
        held: list[object] = [self._sections.get(mesh) for mesh in self._held]
        if held:
            held.append(self._bars)
        frames = self._frames if self.outlet.redraws else []
        return [frame for frame in frames if frame.picture not in held]

    def _last_drawing(self, sections: Sections) -> list[Message]:
        [frame] = [frame for frame in self._frames if frame.picture is sections]
        self._frames.remove(frame)
        content = sections.final()
        return drawing(frame, content) if content else []

    def _texts(self, mesh: str, texts: Iterable[Text]) -> None:
        waiting = self._held.get(mesh, self._waiting)
        for stream, text in texts:
            if stream != "display":
                append_text(waiting, stream, text)
                continue
            for line in text.splitlines():
                if display := self._tokens.display(line):
                    waiting.append(display)
                else:  # how many were hidden
                    append_text(waiting, "stdout", f"{line}\n")

    def _send(self) -> None:
        with self._sending:
            with self._lock:
                sent, self._waiting = self._waiting, []
                self._is_sending = bool(sent)
                if sent:
                    self._next_flush_s = self._now() + FLUSH_S
            for one in sent:
                one.send(self.outlet)
            self._is_sending = False

    def _due(self) -> float | None:
        times = [at for folder in self._folders.values() if (at := folder.deadline) is not None]
        drawn = [at for one in self._moving() if (at := one.picture.deadline) is not None]
        times += [max(at, self._next_flush_s) for at in drawn]
        if self._waiting:
            times.append(self._next_flush_s)
        return min(times, default=None)


def _own(content: Mapping[str, Any], display_id: str) -> dict[str, Any]:
    transient = {"display_id": display_id} if display_id else {}
    return {"metadata": {}, **content, "transient": transient}


class Flushed(Protocol):
    """Has something to send now and then."""

    def flush(self) -> float | None:
        """Send what is due. Returns when there will be more, or None."""


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
