"""What ranks print and show, on its way to whoever shows it to a person.

All text is kept in the logbook. Lines go to listeners (a notebook) with the tag of the cell that
caused them; without listeners they are printed, each with its mesh and rank. Runs in the inbox
thread; listeners return at once.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.control.output.logbook import Logbook
from monarch_nb.control.output.metrics import Metrics
from monarch_nb.control.output.tail import Tail
from monarch_nb.core.hangs.stacks import FATAL
from monarch_nb.core.text import bars
from monarch_nb.core.text.lines import LineAssembler
from monarch_nb.core.wire.messages.actors import AggregateOutput
from monarch_nb.core.wire.messages.agents import RawOutput, Taken
from monarch_nb.core.wire.messages.cells import Output, OutputTaken
from monarch_nb.core.wire.messages.codec import decode, json_of
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.meshes.states import place_of

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.supervision.supervision import Supervision

MAX_GROUPS: Final = 2_000  # of similar lines in a window
_TELL_CHARS: Final = 1 << 14  # a sixteenth of the window of a rank: few lines cost nothing
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Show = Callable[[int, str, str, str], None]  # tag, mesh, stream, text


@dataclass(frozen=True)
class OutputEvent:
    """Something a rank printed (`stream` "stdout" or "stderr", `text`), showed ("display",
    `content`), or how far its progress bars are ("progress", `content`). `blocks` are the parts of
    the text that were written at once and have several lines: the first character and the one
    behind the last."""

    tag: int
    rank: int
    mesh: str
    size: int
    stream: str
    text: str = ""
    content: dict[str, Any] = field(default_factory=dict)
    blocks: Sequence[tuple[int, int]] = ()


ShowEvent = Callable[[int, OutputEvent], None]
TakeMetrics = Callable[[dict[str, object] | None, int], None]  # source


def _nowhere(_process: int, _event: OutputEvent) -> None:
    """Show nothing: the event is kept in the log only."""


class OutputService:
    def __init__(self, supervision: Supervision, logbook: Logbook) -> None:
        self.logbook = logbook
        self.tail = Tail()
        self.metrics = Metrics(supervision)
        self._supervision = supervision
        self._listeners: list[Callable[[OutputEvent], None]] = []
        self.cell_of: dict[int, int] = {}  # process -> tag of the cell it runs, for output of C
        self._partial: dict[tuple[int, str], str] = {}
        self._crashing: set[tuple[int, str]] = set()  # process, stream: faulthandler writes there
        self._windows = LogWindows(self._show_window)
        self._held: dict[int, list[Callable[[], None]]] = {}  # what came since, by process
        self._tags: dict[int, int] = {}  # of cells that the controller before has called otherwise
        self._taken: dict[int, int] = {}  # by process: characters of which it has not been told
        self._lock = threading.RLock()
        supervision.on_exit.append(self._end_line)

    def listen(self, callback: Callable[[OutputEvent], None]) -> None:
        """Give events to this one; nothing is printed any more."""
        self._listeners.append(callback)

    def rename(self, tags: Mapping[int, int]) -> None:
        """Show what comes for cells of the controller before under the tags that they have here:
        ranks use the old ones until they have heard of the new."""
        with self._lock:
            self._tags = {**self._tags, **tags}

    def called(self, tag: int) -> int:
        """Return what a cell is called here which ranks call so. Any thread."""
        return self._tags.get(tag, tag)

    def hold(self, processes: Iterable[int]) -> None:
        """Let what comes of these wait, until what they have printed before was recalled."""
        with self._lock:
            self._held.update((process, []) for process in processes)

    def recall(self, message: Message, *, shown: bool) -> None:
        """Take what a rank has printed before this process drove it; `shown`: and show it. Any
        thread."""
        with self._lock:
            self._take(message, self._shown if shown else _nowhere, self.metrics.take)

    def recall_raw(self, raw: RawOutput, tag: int, *, shown: bool) -> None:
        """The same, of what C code and children have written, for a notebook cell."""
        with self._lock:
            show = self._shown if shown else _nowhere
            self._hand_on(raw.proc, tag, raw.stream, raw.text, None, show=show)

    def go_on(self, process: int) -> None:
        """Take what has waited: all that was before is recalled."""
        with self._lock:
            for take in self._held.pop(process, ()):
                take()

    def on_output(self, message: Message) -> None:
        """Take an OUTPUT message of a rank, which prints more when it hears that it was taken."""
        with self._lock:
            if (held := self._held.get(message.source)) is not None:
                held.append(lambda: self._take_new(message))
            else:
                self._take_new(message)

    def _take_new(self, message: Message) -> None:
        source = message.source
        taken = self._taken.get(source, 0)
        taken += self._take(message, self._shown, self.metrics.on_logged)
        if taken >= _TELL_CHARS:
            self._supervision.proc.control(source, OutputTaken(taken))
            taken = 0
        self._taken[source] = taken

    def _take(self, message: Message, show: ShowEvent, measured: TakeMetrics) -> int:
        # how many characters it has printed
        _, _, stream, text, content, blocks = decode(Output, json_of(message.payload))
        source, tag = message.source, self.called(message.tag)
        printed = len(text)
        if stream == "metrics":
            measured(content, source)
            return 0
        if stream == "progress":  # bars that have ended leave a line
            text = _ended(content)
        self._hand_on(source, tag, stream, text, content, blocks=blocks or (), show=show)
        return printed

    def on_raw(self, raw: RawOutput, message: Message) -> None:
        """Take what a rank's C code or its children wrote to the file descriptors, from the agent,
        which sends more when it hears that this was taken."""
        self._supervision.proc.control(message.source, Taken(raw.bytes))
        with self._lock:
            if (held := self._held.get(raw.proc)) is not None:
                held.append(lambda: self._take_raw(raw))
            else:
                self._take_raw(raw)

    def _take_raw(self, raw: RawOutput) -> None:
        process, stream, text = raw.proc, raw.stream, raw.text
        at = 0 if (process, stream) in self._crashing else text.find(FATAL)
        if at >= 0:  # a report for the log; whoever is told of the death is told where it was
            self._crashing.add((process, stream))
            text, report = text[:at], text[at:]
        else:
            report = ""
        tag = self.cell_of.get(process, 0)
        self._hand_on(process, tag, stream, text, None, report, show=self._shown)

    def on_logging_option(self, wanted: AggregateOutput, _: Message) -> None:
        """Do `ProcMesh.logging_option`, called here or on a rank."""
        self._windows.set(wanted.procs, wanted.name, wanted.window_s)

    def close(self) -> None:
        self._windows.close()
        for process, stream in list(self._partial):
            self._hand_on(process, 0, stream, "\n", None, show=self._shown)
        self.logbook.close()

    def _show_window(self, tag: int, mesh: str, stream: str, text: str) -> None:
        self._show(0, OutputEvent(tag, 0, f"{mesh}, aggregated", 1, stream, text))

    def _end_line(self, ended: Exit) -> None:
        for process, stream in list(self._partial):
            if process == ended.process:
                self._hand_on(process, 0, stream, "\n", None, show=self._shown)
        name, rank, _, number, _ = place_of(self._supervision, ended.process)
        self.tail.end_lines(name, rank, number)
        self._taken.pop(ended.process, None)
        self._crashing = {each for each in self._crashing if each[0] != ended.process}

    def _hand_on(
        self,
        process: int,
        tag: int,
        stream: str,
        text: str,
        content: dict[str, object] | None,
        hidden: str = "",
        blocks: Sequence[tuple[int, int]] = (),
        *,
        show: ShowEvent,
    ) -> None:
        # Keep it and show it; what follows it `hidden` is kept only
        name, rank, size, number, _ = place_of(self._supervision, process)
        if text or hidden:
            at = time.time()
            self.logbook.write(name, rank, size, tag, text + hidden, at)
            self.tail.feed(name, rank, stream, text + hidden, number, at)
        if hidden and not text:
            return
        show(process, OutputEvent(tag, rank, name, size, stream, text, content or {}, blocks))

    def _shown(self, process: int, event: OutputEvent) -> None:
        if not self._windows.take(process, event.tag, event.stream, event.text):
            self._show(process, event)

    def _show(self, process: int, event: OutputEvent) -> None:
        if self._listeners:
            for listener in self._listeners:
                listener(event)
        elif event.text:
            self._print(process, event)

    def _print(self, process: int, event: OutputEvent) -> None:
        key = (process, event.stream)
        *lines, rest = (self._partial.pop(key, "") + event.text).split("\n")
        if rest:
            self._partial[key] = rest
        target = sys.stdout if event.stream == "stdout" else sys.stderr
        label = f"[{event.mesh} {event.rank}] " if event.size > 1 else ""
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more: `| head`
            target.write("".join(f"{label}{line}\n" for line in lines))
            target.flush()


def _ended(content: Any) -> str:
    try:
        return bars.lines(map(bars.Bar.read, content["bars"]))
    except (KeyError, OverflowError, TypeError, ValueError):
        raise RemoteProtocolError("progress without bars") from None


# ------------------------------------------------------------------------ `ProcMesh.logging_option`


class LogWindows:
    """Collects output of ranks for some time and shows it folded.

    What a window shows replaces the lines themselves: nothing is shown twice. A window opens with
    its first line.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._window_of: dict[int, _Window] = {}

    def set(self, processes: Sequence[int], name: str, window_s: float | None) -> None:
        """Collect the output of these for so long at a time; None: show it as it comes."""
        closed = {self._window_of.pop(process, None) for process in processes}
        for each in closed - {None}:
            assert each is not None
            each.end()
        if window_s is not None:
            window = _Window(name, window_s, self._show)
            self._window_of.update(dict.fromkeys(processes, window))

    def take(self, process: int, tag: int, stream: str, text: str) -> bool:
        """Collect a piece of output; False if it is not for us. Inbox thread."""
        window = self._window_of.get(process)
        if window is None or stream not in {"stdout", "stderr"}:
            return False
        window.feed(process, tag, stream, text)
        return True

    def close(self) -> None:
        for window in set(self._window_of.values()):
            window.end()
        self._window_of.clear()


class _Window:
    def __init__(self, name: str, seconds: float, show: Show) -> None:
        self._name = name
        self._seconds = seconds
        self._show = show
        self._lines = {"stdout": SimilarLines(), "stderr": SimilarLines()}
        self._tag = 0
        self._opened = ""
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def feed(self, process: int, tag: int, stream: str, text: str) -> None:
        with self._lock:
            self._tag = tag or self._tag
            self._lines[stream].feed(process, text)
            if self._timer is None:
                self._opened = time.strftime("%H:%M:%S")
                self._timer = threading.Timer(self._seconds, self._shut)
                self._timer.daemon = True
                self._timer.name = "monarch-logs"
                self._timer.start()

    def end(self) -> None:
        for lines in self._lines.values():
            with self._lock:
                lines.finish()
        timer = self._timer
        if timer is not None:
            timer.cancel()
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            self._timer = None
            taken = [(stream, lines.take()) for stream, lines in self._lines.items()]
            tag, opened = self._tag, self._opened
        for stream, groups in taken:
            if groups:
                self._show(tag, self._name, stream, self._block(groups, opened))

    def _block(self, groups: list[tuple[int, str]], opened: str) -> str:
        title = f"aggregated logs of {self._name}, {self._seconds:g} s from {opened}"
        lines = [f"[{count} similar log lines] {text}" for count, text in groups]
        return "\n".join([f">>> {title} >>>", *lines, f"<<< {title} <<<", ""])


class SimilarLines:
    """Counts similar lines of several ranks: those that differ in numbers only.

    Different lines of one rank are never put together, so the steps of a training stay apart: the
    second line of its kind goes with the second of the other ranks.

    Example:
        >>> lines = SimilarLines()
        >>> for rank in (0, 1):
        ...     lines.feed(rank, f"rank {rank}: step 1\\nrank {rank}: step 2\\n")
        >>> lines.take()
        [(2, 'rank 0: step 1'), (2, 'rank 0: step 2')]
    """

    def __init__(self) -> None:
        self._assemblers: dict[int, LineAssembler] = {}
        self._places: dict[tuple[int, str], dict[str, int]] = {}
        self._firsts: dict[tuple[str, int], str] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._left_out = 0

    def feed(self, rank: int, text: str) -> None:
        """Take a chunk of a rank's output."""
        for line in self._assemblers.setdefault(rank, LineAssembler()).feed(text):
            self._add(rank, line)

    def take(self) -> list[tuple[int, str]]:
        """Take how many and the first of them, in the order in which they came."""
        found = [(self._counts[key], first) for key, first in self._firsts.items()]
        if self._left_out:
            found.append((self._left_out, "... more lines of other kinds"))
        self._places, self._firsts, self._counts, self._left_out = {}, {}, {}, 0
        return found

    def finish(self) -> None:
        """Count as a line what has no end yet: no more text comes."""
        for rank, assembler in self._assemblers.items():
            if assembler:
                self._add(rank, assembler.take())

    def _add(self, rank: int, line: str) -> None:
        kind = _NUMBER.sub("#", line)
        places = self._places.setdefault((rank, kind), {})
        key = kind, places.setdefault(line, len(places))
        if key not in self._firsts and len(self._firsts) >= MAX_GROUPS:
            self._left_out += 1
            return
        self._firsts.setdefault(key, line)
        self._counts[key] = self._counts.get(key, 0) + 1
