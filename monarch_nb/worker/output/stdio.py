"""`sys.stdout` and `sys.stderr` of a rank: text goes to whoever caused it, in few messages.

Rule: a write takes no lock: it may come from a signal handler, or from a `__del__` in the middle of
another write. Writers append to one queue for both streams; a flusher thread, asleep while nothing
waits, hands it on while the window has room. Who writes faster than that lends it a turn, a few
milliseconds at most, and waits for room where there is none; what is still too much is dropped, and
counted. A forked child writes to the real descriptors. This file does not know what a tag means or
where `send` sends.
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
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from monarch_nb.net.threads import helper_thread, is_helper
from monarch_nb.worker.output.window import Window

TICK_S: Final = 0.03  # between two sends while text keeps coming
PAUSE_OF_TEXT_S: Final = 0.002  # then what was written before it leaves: what is said together
FLUSH_S: Final = 0.02  # how long `flush` waits at most
POLL_S: Final = 0.0003
SMALL: Final = 256  # characters; larger pieces are counted by their size, smaller ones by number
MANY: Final = 1_000  # pieces; then the flusher does not wait for the tick
STEP: Final = 20_000  # pieces; then the writer pauses: the two share one interpreter
PAUSE_S: Final = 0.002
MAX_PIECES: Final = 200_000  # what comes on top until the next send is dropped
MAX_CHARS: Final = 4_000_000  # of larger pieces, likewise
MAX_TORN: Final = 100_000  # characters that are kept of a line too long for the room that is left
MAX_LOOKED_AT: Final = 1_000  # pieces; in a flood nobody sees what belongs together

CurrentTag = Callable[[], int]
Span = tuple[int, int]
Place = tuple[int, str]  # tag, "stdout" or "stderr"


class Send(Protocol):
    """Sends text of a stream for a tag. `blocks` are where in it something of several lines was
    written at once: the first character and the one behind the last."""

    def __call__(self, tag: int, stream: str, text: str, *, blocks: list[Span] | None) -> None: ...


_NOWHERE: Final = (0, "")
_FDS: Final = {"stdout": 1, "stderr": 2}


class OutputPump:
    """Collects what both streams of this process are given and sends it by tag.

    `current_tag` is asked in the thread that writes, with every write; `send` is called by one
    thread at a time, the flusher's or the one that drains.
    """

    def __init__(self, current_tag: CurrentTag, send: Send, window: Window) -> None:
        self._current_tag = current_tag
        self._send = send
        self._window = window
        self._pieces: deque[tuple[int, str, str | _Gap]] = deque()
        self._limit = 0  # more pieces than this and `_pressed` has something to do
        self._is_slow = False  # writes have to look closer
        self._is_forked = False
        self._is_handing_over = False
        self._chars = 0  # of larger pieces
        self._flushed_s = 0.0
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._gaps: dict[Place, _Gap] = {}  # the last of each place
        self._torn: set[Place] = set()  # whose line was cut: the rest of it is dropped too
        self._open: set[Place] = set()  # whose last text did not end its line
        self._sending = threading.RLock()
        _pumps.add(self)
        self._thread = helper_thread(self._run, "monarch-stdio")
        self._thread.start()

    def drain(self) -> None:
        """Send all that was written before this call, in this thread."""
        if self._is_forked:
            return
        self._limit = 0  # before looking: who writes from now on wakes the flusher
        # called before every answer: in this order of looking, nothing is on its way if both say so
        if not (self._pieces or self._is_handing_over):
            return
        with self._sending:
            self._is_handing_over = True
            self._chars = 0
            for place, parts in self._taken():
                self._hand_over(place, parts)
            self._forget_gaps()
            self._is_handing_over = False

    def flush(self) -> None:
        """See to it that what was written leaves, before code runs that may not return.

        The flusher sends it: here a lock may be held, in a `__del__` in the middle of a send. Not
        again within a tick, since a logger flushes with every record.
        """
        now = time.monotonic()
        if self._is_forked or not self._pieces or now - self._flushed_s < TICK_S:
            return
        self._flushed_s = now
        self._wake.put(True)
        while (self._pieces or self._is_handing_over) and time.monotonic() < now + FLUSH_S:
            time.sleep(POLL_S)

    def close(self) -> None:
        """Send what is left and end the flusher. Later text waits for a `drain`."""
        self._wake.put(False)
        self._thread.join(timeout=1.0)
        self.drain()

    def forked(self) -> None:
        """Drop the text that came along: this process is a fork, and it is the parent's."""
        self._is_forked = self._is_slow = True
        self._pieces.clear()

    # writers

    def writer(self, stream: str) -> Callable[[str], int]:
        """Make a `write` that is fast: programs print a million lines, several pieces each."""
        pieces, append, current_tag = self._pieces, self._pieces.append, self._current_tag

        def write(text: str) -> int:
            if self._is_slow or type(text) is not str or len(text) > SMALL:
                return self._write_slowly(stream, text)
            append((current_tag(), stream, text))
            if len(pieces) > self._limit:
                self._pressed()
            return len(text)

        return write

    def _pressed(self) -> None:
        # More has gathered: wake the flusher, then hurry it, then lend it a turn, then drop
        if len(self._pieces) > MAX_PIECES:
            self._is_slow = True
            return
        if self._limit > MANY:
            time.sleep(PAUSE_S)
            self._await_room()
        hurries = self._limit >= MANY
        self._limit = min(len(self._pieces) + STEP, MAX_PIECES) if hurries else MANY
        self._wake.put(True)

    def _await_room(self) -> None:
        if is_helper():  # it hears what was taken, or answers others
            return
        while self._window.is_full and not self._window.is_stuck:
            time.sleep(PAUSE_S)

    def _write_slowly(self, stream: str, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._is_forked:
            write_to_descriptor(_FDS[stream], text)
            return len(text)
        place = self._current_tag(), stream
        rest = self._untorn(place, text)
        if self._chars and self._chars + len(rest) > MAX_CHARS and not self._gaps:
            self._wake.put(True)
            time.sleep(PAUSE_S)
            self._await_room()
        size = self._fitting(rest)
        if kept := rest[:size]:
            self._pieces.append((*place, kept))
            self._chars += size
            self._gaps.pop(place, None)  # it is further up now
        if size < len(rest):
            self._drop(place, rest[size:])
        self._is_slow = bool(self._torn or self._gaps)
        if len(self._pieces) > self._limit:
            self._pressed()
        return len(text)

    def _untorn(self, place: Place, text: str) -> str:
        if place not in self._torn:
            return text
        lost, end, text = text.partition("\n")
        gap = self._gaps.get(place)
        if end and len(lost) < SMALL and (gap is None or gap.is_told):
            self._torn.discard(place)  # the note was about this line; its last bit needs no other
        else:
            self._drop(place, lost + end)
        return text

    def _fitting(self, text: str) -> int:
        room = max(MAX_CHARS - self._chars, 0) if len(self._pieces) <= MAX_PIECES else 0
        if len(text) <= room:
            return len(text)
        return text.rfind("\n", 0, room) + 1 or min(room, MAX_TORN)

    def _drop(self, place: Place, text: str) -> None:
        gap = self._gaps.get(place)
        if gap is None or gap.is_told:
            gap = self._gaps[place] = _Gap()
            self._pieces.append((*place, gap))
        gap.lines += text.count("\n")
        gap.chars += len(text)
        (self._torn.discard if text.endswith("\n") else self._torn.add)(place)

    # the flusher

    def _run(self) -> None:
        last = 0.0
        goes_on = True
        while goes_on and self._wake.get():
            goes_on = self._doze(last + TICK_S)
            while goes_on and self._window.is_full:
                with contextlib.suppress(queue.Empty):
                    goes_on = self._wake.get(timeout=TICK_S)
            self.drain()
            last = time.monotonic()

    def _doze(self, tick_s: float) -> bool:
        # Let more text come, until the tick and a pause of the writers; False to end. Whatever
        # arrives means: do not wait any longer.
        begun = now = time.monotonic()
        seen = -1
        while now < tick_s or (len(self._pieces) != seen and now < begun + TICK_S):
            seen = len(self._pieces)
            try:
                return self._wake.get(timeout=max(tick_s - now, PAUSE_OF_TEXT_S))
            except queue.Empty:
                now = time.monotonic()
        return True

    def _taken(self) -> Iterator[tuple[Place, list[str]]]:
        place, parts = _NOWHERE, list[str]()
        for _ in range(len(self._pieces)):
            tag, stream, piece = self._pieces.popleft()
            if tag != place[0] or stream != place[1]:  # no tuple is made for each piece
                if parts:
                    yield place, parts
                place, parts = (tag, stream), []
            if isinstance(piece, str):
                parts.append(piece)
            else:
                text = _whole_lines("".join(parts))
                is_open = not text.endswith("\n") if text else place in self._open
                parts = [text, "\n" if is_open else "", piece.tell()]
        if parts:
            yield place, parts

    def _forget_gaps(self) -> None:
        # Of places that have not written since: a cell that ended in the middle of a line
        for place, gap in list(self._gaps.items()):
            if gap.is_old:
                self._gaps.pop(place, None)
                self._torn.discard(place)
            gap.is_old = gap.is_told

    def _hand_over(self, place: Place, parts: list[str]) -> None:
        (tag, stream), text = place, "".join(parts)
        (self._open.discard if text.endswith("\n") else self._open.add)(place)
        blocks = list(_blocks(parts)) if len(parts) <= MAX_LOOKED_AT else []
        if not text.isascii():
            size = len(text)
            text = text.encode("utf-8", RankStream.errors).decode()
            blocks = blocks if len(text) == size else []
        self._window.send(len(text))  # before: another controller may come while it is sent
        try:
            self._send(tag, stream, text, blocks=blocks or None)
        except Exception:  # noqa: BLE001  the link is gone, but the agent reads the descriptor
            self._window.take(len(text))
            write_to_descriptor(_FDS[stream], text)


class _Gap:
    __slots__ = ("chars", "is_old", "is_told", "lines")

    def __init__(self) -> None:
        self.lines = self.chars = 0
        self.is_told = self.is_old = False

    def tell(self) -> str:
        # The note in the output; what is dropped from now on needs another
        self.is_told = True
        if not self.lines:
            return f"... {self.chars} characters dropped ...\n"
        lines = "1 line" if self.lines == 1 else f"{self.lines} lines"
        return f"... {lines} ({self.chars} characters) dropped ...\n"


class RankStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a rank; `stream` is "stdout" or "stderr".

    Looks like a text file that is no terminal.
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True
    mode = "w"

    def __init__(self, pump: OutputPump, stream: str) -> None:
        self._stream = stream
        self._pump = pump
        self.name = f"<{stream}>"
        self.buffer = RankBytes(self)
        self.write = pump.writer(stream)  # type: ignore[method-assign]  # a call less per write

    def fileno(self) -> int:
        return _FDS[self._stream]

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        """Let it leave now; text leaves within milliseconds anyway."""
        self._pump.flush()

    def reconfigure(self, **_: object) -> None:
        """Do nothing: the stream is UTF-8, and lines leave as they come."""

    def close(self) -> None:
        """Stay open: the process needs it to its end."""


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
        return self._text.fileno()

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Stays open."""


def install(current_tag: CurrentTag, send: Send, window: Window) -> OutputPump:
    """Replace `sys.stdout` and `sys.stderr`, also where loggers made before hold them."""
    pump = OutputPump(current_tag, send, window)
    for stream in _FDS:
        old, new = getattr(sys, stream), RankStream(pump, stream)
        setattr(sys, stream, new)
        for handler in _log_handlers():
            if handler.stream in (old, getattr(sys, f"__{stream}__")):
                handler.setStream(new)
    return pump


def _blocks(parts: list[str]) -> Iterator[Span]:
    # Where parts of several lines are in the text that they make
    at = 0
    for part in parts:
        if part.find("\n", 0, -1) >= 0:
            yield at, at + len(part)
        at += len(part)


def _whole_lines(text: str) -> str:
    # Without the piece of a line at the end, unless it is long enough to be of use
    end = text.rfind("\n") + 1
    return text if len(text) - end > SMALL else text[:end]


def write_to_descriptor(fd: int, text: str) -> None:
    """Write all of it, or as much as a broken descriptor takes."""
    data = text.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(fd, data) :]


def _log_handlers() -> Iterator[logging.StreamHandler[Any]]:
    # not by way of hundreds of loggers: looking at each copies as many pages of the zygote
    made_so_far = logging._handlerList  # type: ignore[attr-defined]  # typeshed leaves it out
    for made in list(made_so_far):
        if type(handler := made()) is logging.StreamHandler:
            yield handler


_pumps: weakref.WeakSet[OutputPump] = weakref.WeakSet()


def _after_fork() -> None:
    for pump in _pumps:
        pump.forked()


os.register_at_fork(after_in_child=_after_fork)
