"""Where requests for completions and help wait in a rank: one place, one thread.

Rule of the file: the newest request is the one that somebody still looks at, so it takes the place
of one that waits. The thread is neither the main one, which may be busy for hours, nor the inbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.net.threads import helper_thread

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc

Request = tuple[object, "Message"]


class QuestionService:
    """Answers requests of some types, one at a time."""

    def __init__(self, proc: Proc, answers: Mapping[type, Callable[[Any], object]]) -> None:
        self._proc = proc
        self._answers = answers
        self._waiting: Request | None = None
        self._has_come = threading.Condition()
        self._thread: threading.Thread | None = None

    def on_request(self, request: object, message: Message) -> None:
        with self._has_come:
            replaced, self._waiting = self._waiting, (request, message)
            self._has_come.notify()
        if replaced is not None:
            self._proc.answer(replaced[1], Refused("a newer request came"))
        if self._thread is None:
            self._thread = helper_thread(self._serve, "monarch-help")
            self._thread.start()

    def _serve(self) -> None:
        while True:
            request, message = self._next()
            answer: object
            try:
                answer = self._answers[type(request)](request)
            except BaseException as error:  # noqa: BLE001  objects of the user's may raise anything
                answer = Refused(f"{type(error).__name__}: {error}")
            self._proc.answer(message, answer)

    def _next(self) -> Request:
        with self._has_come:
            self._has_come.wait_for(lambda: self._waiting is not None)
            assert self._waiting is not None
            request, self._waiting = self._waiting, None
        return request
