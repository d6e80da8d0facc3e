"""`ProcMesh.logging_option`, seen from the client: output is collected and shown folded.

What a window shows replaces the lines themselves: nothing is shown twice. A window opens with its
first line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from monarch_nb.core.text.aggregation import SimilarLines

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
