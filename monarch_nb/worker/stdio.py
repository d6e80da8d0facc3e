"""`sys.stdout` and `sys.stderr` of a rank: text goes to whoever caused it, in few messages.

Rule: a write never blocks and takes no lock: it may come from a signal handler, or from a `__del__`
in the middle of another write. Writers append to one queue for both streams; a flusher thread,
asleep while nothing waits, hands it on. A forked child writes to the real descriptors. This file
does not know what a tag means or where `send` sends.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final

TICK_S: Final = 0.03  # between two sends while text keeps coming
FIRST_S: Final = 0.002  # before the first: a short cell's text leaves with its result, in one go
WAKE_CHARS: Final = 32_768  # then the flusher does not wait for the tick
MAX_WAITING: Final = 4_000_000  # characters; what comes on top until the next send is dropped
MAX_TORN: Final = 100_000  # characters that are kept of a line too long for the room that is left

CurrentTag = Callable[[], int]
Send = Callable[[int, str, str], None]
Place = tuple[int, str]  # tag, "stdout" or "stderr"

_FDS: Final = {"stdout": 1, "stderr": 2}


class OutputPump:
    """Collects what both streams of this process are given and sends it by tag.

    `current_tag` is asked in the thread that writes, with every write; `send(tag, stream, text)` is
    called by one thread at a time, the flusher's or the one that drains.
    """

    def __init__(self, current_tag: CurrentTag, send: Send) -> None:
        self._current_tag = current_tag
        self._send = send
        self._pieces: deque[tuple[Place, str]] = deque()
        self._waiting = 0  # characters, about: writers do not lock
        self._is_awake = False
        self._is_urgent = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._dropped: dict[Place, tuple[int, int]] = {}  # lines, characters
        self._torn: set[Place] = set()  # whose line was cut: the rest of it is dropped too
        self._open: set[Place] = set()  # whose last text did not end its line
        self._sending = threading.RLock()
        self.is_forked = False
        _pumps.add(self)
        self._thread = threading.Thread(target=self._run, name="monarch-stdio", daemon=True)
        vars(self._thread)["pydev_do_not_trace"] = True  # a breakpoint in a cell lets it run
        self._thread.start()

    def put(self, stream: str, text: str) -> None:
        """Take a piece of text. Never blocks."""
        place = self._current_tag(), stream
        if self._torn or self._waiting + len(text) > MAX_WAITING:
            text = self._fitting(place, text)
        if text:
            self._pieces.append((place, text))
            self._waiting += len(text)
        if not self._is_awake:
            self._is_awake = True
            self._wake.put(True)
        elif self._waiting > WAKE_CHARS and not self._is_urgent:
            self._is_urgent = True
            self._wake.put(True)

    def drain(self) -> None:
        """Send all that was written before this call, in this thread."""
        if self.is_forked:
            return
        with self._sending:
            self._is_awake = self._is_urgent = False
            self._waiting = 0
            for (tag, stream), text in _joined(self._taken()):
                self._hand_over(tag, stream, text)

    def close(self) -> None:
        """Send what is left and end the flusher. Later text waits for a `drain`."""
        self._wake.put(False)
        self._thread.join(timeout=1.0)
        self.drain()

    def forked(self) -> None:
        """This process is a fork: the text and the lock that came along are the parent's."""
        self.is_forked = True
        self._pieces.clear()

    def _run(self) -> None:
        last = 0.0
        goes_on = True
        while goes_on and self._wake.get():
            goes_on = self._doze(max(FIRST_S, last + TICK_S - time.monotonic()))
            self.drain()
            last = time.monotonic()

    def _doze(self, limit_s: float) -> bool:
        """Let more text come; False to end. Whatever arrives means: do not wait any longer."""
        try:
            return self._wake.get(timeout=limit_s)
        except queue.Empty:
            return True

    def _taken(self) -> Iterator[tuple[Place, str]]:
        for _ in range(len(self._pieces)):
            place, text = self._pieces.popleft()
            (self._open.discard if text.endswith("\n") else self._open.add)(place)
            yield place, text
        dropped, self._dropped = self._dropped, {}
        for place, (lines, chars) in dropped.items():
            ended = "\n" if place in self._open else ""
            self._open.discard(place)
            yield place, f"{ended}... {lines} lines ({chars} characters) dropped ...\n"

    def _hand_over(self, tag: int, stream: str, text: str) -> None:
        try:
            self._send(tag, stream, text)
        except Exception:  # noqa: BLE001  the link is gone: the agent's log still reads the descriptor
            write_to_descriptor(_FDS[stream], text)

    def _fitting(self, place: Place, text: str) -> str:
        """What there is room for, whole lines if possible; the rest is counted."""
        if place in self._torn:
            lost, end, text = text.partition("\n")
            self._count(place, lost + end)
            if not end:
                return ""
            self._torn.discard(place)
        room = max(MAX_WAITING - self._waiting, 0)
        if len(text) <= room:
            return text
        size = text.rfind("\n", 0, room) + 1 or min(room, MAX_TORN)
        self._count(place, text[size:])
        if not text.endswith("\n"):
            self._torn.add(place)
        return text[:size]

    def _count(self, place: Place, text: str) -> None:
        lines, chars = self._dropped.get(place, (0, 0))
        self._dropped[place] = lines + text.count("\n"), chars + len(text)


class RankStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a rank; `stream` is "stdout" or "stderr".

    Looks like a text file that is no terminal. `flush` needs to do nothing: text is on its way
    within milliseconds, and a logger flushes with every record.
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True
    mode = "w"

    def __init__(self, pump: OutputPump, stream: str) -> None:
        self._pump = pump
        self._stream = stream
        self.name = f"<{stream}>"
        self.buffer = RankBytes(self)

    def write(self, text: str) -> int:
        """Take the text; in a forked child, write it to the descriptor at once."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._pump.is_forked:
            write_to_descriptor(self.fileno(), text)
        else:
            self._pump.put(self._stream, text)
        return len(text)

    def fileno(self) -> int:
        """The real descriptor, for subprocesses and C code."""
        return _FDS[self._stream]

    def writable(self) -> bool:
        """Yes."""
        return True

    def isatty(self) -> bool:
        """No."""
        return False

    def flush(self) -> None:
        """Nothing to do."""

    def reconfigure(self, **_: Any) -> None:
        """Nothing to choose: UTF-8, lines as they come."""

    def close(self) -> None:
        """Stays open: the process needs it to its end."""


class RankBytes(io.BufferedIOBase):
    """`sys.stdout.buffer`: bytes are UTF-8, in pieces of any size."""

    def __init__(self, text: RankStream) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.name = text.name

    def write(self, data: Any) -> int:
        """Take the bytes; half a character waits for its other half."""
        data = bytes(data)
        if text := self._decoder.decode(data):
            self._text.write(text)
        return len(data)

    def fileno(self) -> int:
        """The real descriptor."""
        return self._text.fileno()

    def writable(self) -> bool:
        """Yes."""
        return True

    def flush(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Stays open."""


def install(current_tag: CurrentTag, send: Send) -> OutputPump:
    """Replace `sys.stdout` and `sys.stderr`, also where loggers made before hold them."""
    pump = OutputPump(current_tag, send)
    for stream in _FDS:
        old, new = getattr(sys, stream), RankStream(pump, stream)
        setattr(sys, stream, new)
        for handler in _log_handlers():
            if handler.stream in (old, getattr(sys, f"__{stream}__")):
                handler.setStream(new)
    return pump


def write_to_descriptor(fd: int, text: str) -> None:
    """All of it, or as much as a broken descriptor takes."""
    data = text.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def _log_handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                yield handler


def _joined(pieces: Iterable[tuple[Place, str]]) -> Iterator[tuple[Place, str]]:
    """Neighbours of one place as one text, which is valid UTF-8."""
    for place, group in groupby(pieces, key=lambda piece: piece[0]):
        text = "".join(text for _, text in group)
        yield place, text if text.isascii() else text.encode("utf-8", RankStream.errors).decode()


_pumps: weakref.WeakSet[OutputPump] = weakref.WeakSet()


def _after_fork() -> None:
    for pump in _pumps:
        pump.forked()


os.register_at_fork(after_in_child=_after_fork)
