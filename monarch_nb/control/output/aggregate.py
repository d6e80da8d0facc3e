"""`ProcMesh.logging_option`, seen from the client: output is collected and shown folded.

What a window shows replaces the lines themselves: nothing is shown twice. A window opens with its
first line.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from monarch_nb.core.text.lines import LineAssembler

MAX_GROUPS: Final = 2_000  # of similar lines in a window
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Show = Callable[[int, str, str, str], None]  # tag, mesh, stream, text


class LogWindows:
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
        """A chunk of a rank's output."""
        for line in self._assemblers.setdefault(rank, LineAssembler()).feed(text):
            self._add(rank, line)

    def take(self) -> list[tuple[int, str]]:
        """How many and the first of them, in the order in which they came; then forget them."""
        found = [(self._counts[key], first) for key, first in self._firsts.items()]
        if self._left_out:
            found.append((self._left_out, "... more lines of other kinds"))
        self._places, self._firsts, self._counts, self._left_out = {}, {}, {}, 0
        return found

    def finish(self) -> None:
        """No more text comes: what has no end yet counts as a line."""
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
