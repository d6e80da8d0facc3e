"""What ranks send for one cell, on its way there: folded, in order, ten times a second at most.

Rules of the file: the first text after a pause goes out at once, by the inbox thread that brought
it; what must wait is sent by the flusher thread, and at the end of the cell by the main thread, so
that nothing comes after the cell's reply that came before it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from monarch_nb.core.text import lines
from monarch_nb.core.text.lines import Throttle
from monarch_nb.core.text.stream_folder import DISPLAY, StreamFolder
from monarch_nb.notebook.layouts.layout import FOLD, Layout
from monarch_nb.notebook.layouts.live_displays import (
    CellDisplays,
    LiveDisplay,
    LiveDisplays,
    display_id,
)
from monarch_nb.notebook.layouts.sections import Sections
from monarch_nb.notebook.output.mime import Content, with_id
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
SOON_S = 0.05  # between two, where lines have waited for their equals long enough
REDRAW_S = 0.06  # in which other ranks are to show the same
ARRIVES_S = 0.1  # a message, before one on another channel that is sent so much later


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
        self._sent_s = self._cleared_s = 0.0
        self._note = ""  # display id of the line that says what is waited for
        self._has_shown = False  # something else

    @property
    def sent_s(self) -> float:
        """When something of it was last sent (`time.monotonic`); 0.0 if nothing was yet."""
        return self._sent_s

    @property
    def _next_flush_s(self) -> float:
        return self._sent_s + FLUSH_S

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
            if mesh in self._folders:  # another run in the same cell
                self._texts(mesh, self._folders[mesh].flush(self._now()))
            shown = [rank for rank in ranks if layout.only in (None, rank)]
            self._running[mesh], self._expected[mesh] = set(shown), set(shown)
            whole = Throttle(where=f"%mesh logs --cell {number}" if number else "%mesh logs")
            self._folders[mesh] = StreamFolder(shown, total, throttle=whole)
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
                    if sections.conclude(rank, one):
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
                    folder.finish(rank, self._now())

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
        elif not self._say_in_section(event, now):
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
            if "data" in content and not self._show_in_section(event, content, now):
                self._feed(event, self._tokens.of_message("display_data", content) + "\n", now)
        elif kind == "update_display_data":
            if live := self._known.find(event):
                live.put(event.rank, event.content)
                self._redraw(live, now)
        elif kind == "clear_output" and (event.size > 1 or event.mesh in self._sections):
            self._clear(event, now)
        elif display_id(content):
            self._feed(event, self._tokens.of_live(self._live.place(event)) + "\n", now)
        elif self._show_in_section(event, content, now):
            pass
        elif area := self._live.area(event):
            area.add(event.rank, event.content)
            self._redraw(area, now)
        else:
            self._add_equal(event, self._tokens.of_message(kind, content), now)

    def _add_equal(self, event: OutputEvent, word: str, now: float) -> None:
        folder = self._folder(event.mesh, event.size)
        common = self._tokens.join(event.mesh, word, event.rank, folder.join)
        if common is None:
            self._feed(event, f"{word}\n", now)
        elif common.is_shown:
            self._redraw(common, now)

    def _say_in_section(self, event: OutputEvent, now: float) -> bool:
        sections = self._sections.get(event.mesh)
        return bool(sections and sections.add(event.rank, event.stream, event.text, now))

    def _show_in_section(self, event: OutputEvent, content: Content, now: float) -> bool:
        sections = self._sections.get(event.mesh)
        return bool(sections and sections.show(event.rank, content, now))

    def _feed(self, event: OutputEvent, text: str, now: float) -> None:
        folder = self._folder(event.mesh, event.size)
        folder.feed(event.rank, event.stream, text, now, event.blocks)

    def _clear(self, event: OutputEvent, now: float) -> None:
        # A rank clears what it has shown; when all have, it is the cell that is cleared
        wait = bool(event.content.get("wait"))
        sections = self._sections.get(event.mesh)
        if sections and sections.clear(event.rank, now, wait=wait):
            return
        changed = self._live.clear(event)
        if len(self._folders) <= 1 and self._live.wiped(event.mesh, self._expected.get(event.mesh)):
            self._release()
            self._cleared_s = now
            self._waiting.append(Display("clear_output", {"wait": wait}))
            self._tokens.wiped()
            changed = self._live.everything()
        for live in changed:
            self._redraw(live, now)

    def _redraw(self, live: LiveDisplay | CommonDisplay, now: float) -> None:
        # Soon: other ranks are about to say the same. What is held back takes its last state.
        if live.is_shown or not self._deferred:
            self._redraws.setdefault(live, now + REDRAW_S)

    def write(self, stream: str, text: str) -> None:
        """Put a line of the controller's own behind what the ranks have said."""
        with self._lock:
            self._collect(self._now())
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

    def note(self, content: Content) -> None:
        """Send the line that says what is waited for, or another content of it."""
        with self._sending:
            self._send()
            kind = "update_display_data" if self._note else "display_data"
            self._note = self._note or uuid.uuid4().hex
            self.sink.display(kind, with_id(content, self._note))

    @property
    def has_note(self) -> bool:
        return bool(self._note)

    def end_note(self, last: Content) -> None:
        """Take the line back; below or above other output it stays, with its `last` content."""
        with self._sending:
            if self._note and self._has_shown:
                self.sink.display("update_display_data", with_id(last, self._note))
            elif self._note:
                self._clear_note()
            self._note = ""

    def make_room(self) -> None:
        """Take the line back, if it stands alone: something else is about to be shown."""
        if self._has_shown:
            return
        with self._sending:
            if self._note and not self._has_shown:
                self._clear_note()
                self._note = ""
            self._has_shown = True

    def _clear_note(self) -> None:
        self._cleared_s = self._now()
        self.sink.display("clear_output", {"wait": False})

    def make_way(self) -> None:
        """Send what ranks have said before a question is asked; not in the inbox thread.

        JupyterLab takes an open question away with the output that is cleared. So nothing of ours
        is cleared from now on, and what was cleared just now has arrived: a question comes on
        another channel.
        """
        self.settle()
        with self._sending:
            self._has_shown = True
        time.sleep(max(0.0, self._cleared_s + ARRIVES_S - self._now()))

    def show(self, content: Content, display_id: str = "") -> None:
        """Send a display of the controller's own now."""
        with self._sending:
            self._send()
            self.make_room()
            self.sink.display("display_data", with_id(content, display_id))

    def redraw(self, content: Content, display_id: str) -> None:
        """Send another content for a display that was shown under this id."""
        with self._sending:
            self.sink.display("update_display_data", with_id(content, display_id))

    def flush(self) -> float | None:
        """Send what may be sent now. Returns when there will be more, or None."""
        now = self._now()
        with self._lock:
            self._redrawn(now)
            if now >= self._next_flush_s:
                self._draw(now)
            if sends := now >= min(self._text_due(), self._next_flush_s):
                self._collect(now)
        if sends:
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
            whole = Throttle(where="%mesh logs")
            self._folders[mesh] = StreamFolder(range(total), total, throttle=whole)
        return self._folders[mesh]

    def _streaming(self) -> Iterator[tuple[str, StreamFolder]]:
        # Those whose text is shown as it comes
        return (each for each in self._folders.items() if each[0] not in self._deferred)

    def _collect(self, now: float) -> None:
        for mesh, folder in self._streaming():
            self._texts(mesh, folder.take(now))

    def _text_due(self) -> float:
        # When lines have waited long enough
        times = [at for _, folder in self._streaming() if (at := folder.deadline) is not None]
        return max(min(times, default=float("inf")), self._sent_s + SOON_S)

    def _release(self) -> None:
        now = self._now()
        for mesh, folder in self._streaming():
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
                    self._sent_s = self._now()
            if sent:
                self.make_room()
            for one in sent:
                one.send(self.sink)
            self._is_sending = False

    def _due(self) -> float | None:
        times = [self._text_due()]
        drawn = [at for one in self._moving() if (at := one.picture.deadline) is not None]
        times += [max(at, self._next_flush_s) for at in drawn]
        if self._waiting or any(folder.is_ready for _, folder in self._streaming()):
            times.append(self._next_flush_s)
        times += self._redraws.values()
        return first if (first := min(times)) < float("inf") else None
