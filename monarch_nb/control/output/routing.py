"""What ranks print and show, on its way to whoever shows it to a person.

All text is kept in the logbook. Lines go to listeners (a notebook) with the tag of the cell that
caused them; without listeners they are printed, each with its mesh and rank. Runs in the inbox
thread; listeners return at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch_nb.control.output.aggregate import LogWindows
from monarch_nb.control.output.logbook import Logbook
from monarch_nb.control.output.metrics import Metrics
from monarch_nb.control.output.tail import Tail
from monarch_nb.core.hangs.stacks import FATAL
from monarch_nb.core.text import bars
from monarch_nb.core.wire.messages.actors import AggregateOutput
from monarch_nb.core.wire.messages.agents import RawOutput, Taken
from monarch_nb.core.wire.messages.cells import Output
from monarch_nb.core.wire.messages.codec import decode, json_of
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.meshes.states import place_of

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.supervision.supervision import Supervision


@dataclass(frozen=True)
class OutputEvent:
    """Something a rank printed (`stream` "stdout" or "stderr", `text`), showed ("display",
    `content`), or how far its progress bars are ("progress", `content`)."""

    tag: int
    rank: int
    mesh: str
    size: int
    stream: str
    text: str = ""
    content: dict[str, Any] = field(default_factory=dict)


class OutputService:
    def __init__(self, supervision: Supervision, logbook: Logbook) -> None:
        self.logbook = logbook
        self.tail = Tail()
        self.metrics = Metrics(supervision)
        self._supervision = supervision
        self._listeners: list[Callable[[OutputEvent], None]] = []
        self.cell_of: dict[
            int, int
        ] = {}  # process -> tag of the cell it runs, for what comes from C
        self._partial: dict[tuple[int, str], str] = {}
        self._crashing: set[tuple[int, str]] = set()  # process, stream: faulthandler writes there
        self._windows = LogWindows(self._show_window)
        supervision.on_exit.append(self._end_line)

    def listen(self, callback: Callable[[OutputEvent], None]) -> None:
        """Give events to this one; nothing is printed any more."""
        self._listeners.append(callback)

    def on_output(self, message: Message) -> None:
        """An OUTPUT message of a rank."""
        _, _, stream, text, content = decode(Output, json_of(message.payload))
        if stream == "metrics":
            self.metrics.on_message(content, message)
            return
        if stream == "progress":  # bars that have ended leave a line
            text = _ended(content)
        self._hand_on(message.source, message.tag, stream, text, content)

    def on_raw(self, raw: RawOutput, message: Message) -> None:
        """What a rank's C code or its children wrote to the file descriptors, from the agent, which
        sends more when it hears that this was taken."""
        process, stream, text = raw.proc, raw.stream, raw.text
        self._supervision.proc.control(message.source, Taken(raw.bytes))
        at = 0 if (process, stream) in self._crashing else text.find(FATAL)
        if at >= 0:  # a report for the log; whoever is told of the death is told where it was
            self._crashing.add((process, stream))
            text, report = text[:at], text[at:]
        else:
            report = ""
        self._hand_on(process, self.cell_of.get(process, 0), stream, text, None, report)

    def on_logging_option(self, wanted: AggregateOutput, _: Message) -> None:
        """`ProcMesh.logging_option`, called here or on a rank."""
        self._windows.set(wanted.procs, wanted.name, wanted.window_s)

    def close(self) -> None:
        self._windows.close()
        for process, stream in list(self._partial):
            self._hand_on(process, 0, stream, "\n", None)
        self.logbook.close()

    def _show_window(self, tag: int, mesh: str, stream: str, text: str) -> None:
        self._show(0, OutputEvent(tag, 0, f"{mesh}, aggregated", 1, stream, text))

    def _end_line(self, ended: Exit) -> None:
        for process, stream in list(self._partial):
            if process == ended.process:
                self._hand_on(process, 0, stream, "\n", None)
        self.tail.end_lines(*place_of(self._supervision, ended.process)[:2])
        self._crashing = {each for each in self._crashing if each[0] != ended.process}

    def _hand_on(
        self,
        process: int,
        tag: int,
        stream: str,
        text: str,
        content: dict[str, object] | None,
        hidden: str = "",
    ) -> None:
        # Keep it and show it; what follows it `hidden` is kept only
        name, rank, size, _, _ = place_of(self._supervision, process)
        if text or hidden:
            self.logbook.write(name, rank, size, tag, text + hidden)
            self.tail.feed(name, rank, stream, text + hidden)
        if hidden and not text:
            return
        if self._windows.take(process, tag, stream, text):
            return
        self._show(process, OutputEvent(tag, rank, name, size, stream, text, content or {}))

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
