"""What pdb on a rank takes for its terminal: lines come from the controller, text goes there.

Rules of the file: whoever waits for a line looks up ten times a second, so that an interrupt that
is aimed at its thread comes up; what one command prints is cut, however much it is. Requests are
put in by the inbox thread, everything else is done by the thread that is being debugged.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any, Final

from monarch_nb.core.wire.messages.debug import DebugEvent, DebugInput

MAX_CHARS: Final = 100_000  # of an answer; a repr may be a hundred megabytes
_LOOK_UP_S: Final = 0.1

Tell = Callable[[DebugEvent], None]


class DebugChannel:
    """The prompt of one debugger, by its number on this rank.

    `tell` sends an event to the controller (docs/protocol.md, verb `debug`).
    """

    def __init__(self, number: int, tell: Tell) -> None:
        self.number = number
        self._prompt: Callable[[], str] = lambda: ""
        self._complete: Callable[[str], list[str]] = lambda _line: []
        self._about: dict[str, object] = {}
        self._pass_over: Callable[[], None] = _nothing
        self._tell = tell
        self._requests: queue.SimpleQueue[DebugInput] = queue.SimpleQueue()
        self._seq = 0
        self._question = ""
        self._asked: DebugEvent | None = None  # and not yet answered
        self._parts: list[str] = []
        self._size = 0

    # the inbox thread

    def put(self, request: DebugInput) -> None:
        self._requests.put(request)

    def ask_again(self, tag: Callable[[int], int]) -> None:
        """Ask a controller that has not heard the question; `tag` is what it calls a cell."""
        if (asked := self._asked) is not None:
            self._seq = 0  # of the requests of this one
            self._tell(asked._replace(seq=0, tag=tag(asked.tag)))

    # the thread that is being debugged

    def attach(self, prompt: Callable[[], str], complete: Callable[[str], list[str]]) -> None:
        """Take the debugger's question, which it writes last, and what completes a line."""
        self._prompt, self._complete = prompt, complete

    def stop(self, about: dict[str, object], pass_over: Callable[[], None]) -> None:
        self._about, self._pass_over = about, pass_over

    def resume(self) -> None:
        self._pass_over = _nothing

    def write(self, text: str) -> int:
        """Keep text for the answer, as far as there is room; the question by itself."""
        if text == self._prompt():
            self._question = text
            return len(text)
        if (room := MAX_CHARS - self._size) > 0:
            self._parts.append(text[:room])
        self._size += len(text)
        return len(text)

    def flush(self) -> None:
        """Text leaves with the next question."""

    def readline(self) -> str:
        """Ask for a line. Raises whatever interrupts this thread."""
        text, question = self._taken(), self._question
        self._question = ""
        if not question:  # one of its own: the rest of a statement, yes or no
            said, newline, question = text.rpartition("\n")
            text = said + newline
        asked: dict[str, Any] = {"text": text, "prompt": question, **self._about}
        self._asked = DebugEvent("asks", self.number, self._seq, **asked)
        self._tell(self._asked)
        try:
            return self._answer()
        finally:
            self._asked = None

    def _answer(self) -> str:
        while True:
            request = self._next()
            if request.kind == "line":
                self._seq = request.seq
                return f"{request.line}\n"
            if request.kind == "pass":
                self._pass_over()
                self._seq = request.seq
                return "continue\n"
            words = self._complete(request.line)
            self._tell(DebugEvent("completes", self.number, request.seq, words=words))

    def end(self, *, stepping: bool) -> None:
        self._say("goes", text=self._taken(), stepping=stepping)

    def _say(self, event: str, **said: Any) -> None:
        self._tell(DebugEvent(event, self.number, self._seq, **said))

    def _next(self) -> DebugInput:
        while True:
            try:
                return self._requests.get(timeout=_LOOK_UP_S)
            except queue.Empty:  # the interpreter has looked for exceptions from other threads
                continue

    def _taken(self) -> str:
        text, self._parts = "".join(self._parts), []
        more, self._size = self._size - len(text), 0
        return text if more <= 0 else f"{text}\n... {more} more characters\n"


def _nothing() -> None:
    """Nobody is stopped."""
