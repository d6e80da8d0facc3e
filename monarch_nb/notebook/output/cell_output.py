"""What ranks send for one cell, on its way there: folded, in order, ten times a second at most.

Rules of the file: the first text after a pause goes out at once, by the inbox thread that brought
it; what must wait is sent by the flusher thread, and at the end of the cell by the main thread, so
that nothing comes after the cell's reply that came before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from monarch_nb.core.text import lines
from monarch_nb.core.text.stream_folder import DISPLAY, WINDOW_S, StreamFolder
from monarch_nb.notebook.layouts.layout import FOLD, Layout, Sections
from monarch_nb.notebook.layouts.live_displays import (
    CellDisplays,
    LiveDisplay,
    LiveDisplays,
    display_id,
)
from monarch_nb.notebook.output.mime import Content, plain_text, with_id
from monarch_nb.notebook.output.outgoing import (
    CommonDisplay,
    Display,
    Frame,
    LiveDrawing,
    Message,
    Tokens,
    append_text,
    drawing,
)
from monarch_nb.notebook.output.progress import Bars
from monarch_nb.notebook.output.sinks import Sink

if TYPE_CHECKING:
    from monarch_nb.control.api import OutputEvent

FLUSH_S = 0.1


class CellOutput:
    """Everything one cell has still to show."""

    def __init__(
        self,
        sink: Sink,
        now: Callable[[], float] = time.monotonic,
        live: LiveDisplays | None = None,
    ) -> None:
        self.sink = sink
        self._now = now
        self._lock = threading.Lock()
        self._sending = threading.RLock()  # taken first; sending may wait, adding may not
        self._is_sending = False
        self._folders: dict[str, StreamFolder] = {}
        self._running: dict[str, set[int]] = {}
        self._expected: dict[str, set[int]] = {}
        self._known = live or LiveDisplays()
        self._live = CellDisplays(self, self._known)
        self._redraws: dict[LiveDisplay | CommonDisplay, float] = {}
        self._tokens = Tokens()
        self._waiting: list[Message] = []
        self._layouts: dict[str, Layout] = {}
        self._deferred: dict[str, list[Message]] = {}  # until the cell has ended
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
        """Begin a cell on these ranks: equal lines wait for all of them, shown by the layout."""
        with self._lock:
            shown = [rank for rank in ranks if layout.only in (None, rank)]
            self._running[mesh], self._expected[mesh] = set(shown), set(shown)
            self._folders[mesh] = StreamFolder(shown, total)
            self._tokens.wiped()
            self._layouts[mesh] = layout
            if not layout.streams:
                self._deferred[mesh] = []
            if layout.has_sections:
                self._sections[mesh] = Sections(layout.kind, shown, total, number)
                self._frames.append(Frame(self._sections[mesh]))

    def conclude(self, mesh: str, results: Mapping[int, Content]) -> dict[int, Content]:
        """Show what the layout has held back; return the results that are to be shown below."""
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
            self._waiting += self._deferred.pop(mesh, [])
            self._bars.stop(mesh, now)
        return left

    def finish(self, mesh: str, ranks: Iterable[int]) -> None:
        """Wait for no more lines of these ranks, which have ended the cell."""
        with self._lock:
            folder = self._folders.get(mesh)
            for rank in self._running.get(mesh, set()).intersection(ranks):
                self._running[mesh].discard(rank)
                if folder is not None:
                    self._texts(mesh, folder.finish(rank, self._now()))

    def add(self, event: OutputEvent) -> float | None:
        """Take an output event. Returns when `flush` has something to do."""
        now = self._now()
        with self._lock:
            if self._layouts.get(event.mesh, FOLD).only in (None, event.rank):
                self._add(event, now)
            return self._due()

    def _add(self, event: OutputEvent, now: float) -> None:
        if event.stream == "progress":
            self._bars.add(event.mesh, event.rank, event.size, event.content, now)
        elif event.stream == DISPLAY:
            self._add_display(event, now)
        elif not self._add_to_section(event, event.text, now):
            if area := self._live.area(event):
                area.write(event.rank, event.text)
                self._redraw(area, now)
            else:
                self._feed(event, event.text, now)

    def _add_display(self, event: OutputEvent, now: float) -> None:
        content = {"metadata": {}, "transient": {}, **event.content}
        kind = content.pop("type", "display_data")
        if not self.sink.redraws:
            content["transient"] = {}
            if "data" in content and not self._add_to_section(event, plain_text(content), now):
                self._feed(event, self._tokens.of_message("display_data", content) + "\n", now)
        elif kind == "update_display_data":
            if live := self._known.find(event):
                live.put(event.rank, event.content)
                self._redraw(live, now)
        elif kind == "clear_output" and event.size > 1:
            self._clear(event, now)
        elif display_id(content):
            self._feed(event, self._tokens.of_live(self._live.place(event)) + "\n", now)
        elif area := self._live.area(event):
            area.add(event.rank, event.content)
            self._redraw(area, now)
        elif not self._add_to_section(event, plain_text(content), now):
            self._add_equal(event, self._tokens.of_message(kind, content), now)

    def _add_equal(self, event: OutputEvent, word: str, now: float) -> None:
        folder = self._folder(event.mesh, event.size)
        common = self._tokens.join(event.mesh, word, event.rank, folder.join)
        if common is None:
            self._feed(event, f"{word}\n", now)
        elif common.is_shown:
            self._redraw(common, now)

    def _add_to_section(self, event: OutputEvent, said: str, now: float) -> bool:
        sections = self._sections.get(event.mesh)
        return bool(sections and said and sections.add(event.rank, event.stream, said, now))

    def _feed(self, event: OutputEvent, text: str, now: float) -> None:
        folder = self._folder(event.mesh, event.size)
        self._texts(event.mesh, folder.feed(event.rank, event.stream, text, now))

    def _clear(self, event: OutputEvent, now: float) -> None:
        # A rank clears what it has shown; when all have, it is the cell that is cleared
        changed = self._live.clear(event)
        if len(self._folders) <= 1 and self._live.wiped(event.mesh, self._expected.get(event.mesh)):
            self._release()
            wait = {"wait": bool(event.content.get("wait"))}
            self._waiting.append(Display("clear_output", wait))
            self._tokens.wiped()
            changed = self._live.everything()
        for live in changed:
            self._redraw(live, now)

    def _redraw(self, live: LiveDisplay | CommonDisplay, now: float) -> None:
        # Soon: other ranks are about to say the same. What is held back takes its last state.
        if live.is_shown or not self._deferred:
            self._redraws.setdefault(live, now + WINDOW_S)

    def write(self, stream: str, text: str) -> None:
        """Put a line of the controller's own behind what the ranks have said."""
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
        """Send what ranks have said before the cell shows something."""
        if self._folders:
            with self._lock:
                self._release()
            self._send()

    def say(self, stream: str, text: str) -> None:
        """Send a line of the controller's own now, behind what the ranks have said."""
        with self._lock:
            self._release()
            append_text(self._waiting, stream, text)
        self._send()

    def show(self, content: Content, display_id: str = "") -> None:
        """Send a display of the controller's own now."""
        with self._sending:
            self._send()
            self.sink.display("display_data", with_id(content, display_id))

    def redraw(self, content: Content, display_id: str) -> None:
        """Send another content for a display that was shown under this id."""
        with self._sending:
            self.sink.display("update_display_data", with_id(content, display_id))

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""
        now = self._now()
        with self._lock:
            for mesh, folder in self._folders.items():
                if (at := folder.deadline) is not None and at <= now:
                    self._texts(mesh, folder.tick(now))
            self._redrawn(now)
            if now >= self._next_flush_s:
                self._draw(now)
        if now >= self._next_flush_s:
            self._send()
        with self._lock:
            return self._due()

    def end(self) -> None:
        now = self._now()
        with self._lock:
            for mesh, folder in self._folders.items():
                self._texts(mesh, folder.flush(now))
            self._redrawn(float("inf"))
            if self.sink.redraws or not self._layouts:  # a terminal gets the bars once
                self._draw_bars(now)
            for mesh in self._folders.keys() - self._layouts.keys():
                del self._folders[mesh]  # the tables of a flood stay as large as they were
        self._send()
        self._tokens.clear()

    def forget(self) -> None:
        """Let the displays of a cell that has ended go: their pictures may be megabytes."""
        with self._lock:
            if not self._layouts:
                self._live = CellDisplays(self, self._known)

    def _folder(self, mesh: str, total: int) -> StreamFolder:
        if mesh not in self._folders:
            self._folders[mesh] = StreamFolder(range(total), total)
        return self._folders[mesh]

    def _release(self) -> None:
        now = self._now()
        for mesh, folder in self._folders.items():
            self._texts(mesh, folder.release(now))

    def _redrawn(self, now: float) -> None:
        for live in [live for live, at in self._redraws.items() if at <= now]:
            del self._redraws[live]
            if live.is_shown or live.ranks:
                self._waiting.append(LiveDrawing(live))

    def _draw(self, now: float) -> None:
        for frame in self._moving():
            at = frame.picture.deadline
            if at is not None and at <= now:
                self._waiting += drawing(frame, frame.picture.draw(now))

    def _draw_bars(self, now: float) -> None:
        if self._bars.deadline is not None:
            self._waiting += drawing(self._frames[0], self._bars.draw(now))

    def _moving(self) -> list[Frame]:
        deferred: list[object] = [self._sections.get(mesh) for mesh in self._deferred]
        if deferred:
            deferred.append(self._bars)
        frames = self._frames if self.sink.redraws else []
        return [frame for frame in frames if frame.picture not in deferred]

    def _last_drawing(self, sections: Sections) -> list[Message]:
        [frame] = [frame for frame in self._frames if frame.picture is sections]
        self._frames.remove(frame)
        content = sections.final()
        return drawing(frame, content) if content else []

    def _texts(self, mesh: str, texts: Iterable[lines.Text]) -> None:
        waiting = self._deferred.get(mesh, self._waiting)
        folder = self._folders[mesh]
        for stream, text in texts:
            if stream != DISPLAY:
                append_text(waiting, stream, text)
                continue
            for line in text.splitlines():
                if display := self._tokens.display(line, mesh, folder.total, folder.batch):
                    waiting.append(display)
                else:  # how many were hidden
                    append_text(waiting, "stdout", f"{line}\n")

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
                one.send(self.sink)
            self._is_sending = False

    def _due(self) -> float | None:
        times = [at for folder in self._folders.values() if (at := folder.deadline) is not None]
        drawn = [at for one in self._moving() if (at := one.picture.deadline) is not None]
        times += [max(at, self._next_flush_s) for at in drawn]
        if self._waiting:
            times.append(self._next_flush_s)
        times += self._redraws.values()
        return min(times, default=None)
