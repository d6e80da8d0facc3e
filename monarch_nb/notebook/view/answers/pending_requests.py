"""Questions and actions under way: each is answered once, whatever happens to who works on it.

Work is done by a bounded number of daemon threads that exist only while there is work, so that one
that hangs stops neither updates nor the others. What is not answered in time is answered by a
sentence; what comes after that is dropped. An action that is sent again (a page that has lost its
connection) is not done again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from monarch_nb.errors import MeshError
from monarch_nb.notebook.view.browser.protocol import VERSION, Ask, Do
from monarch_nb.notebook.view.feed.encoding import Json, plain

MAX_THREADS: Final = 8
MAX_WAITING: Final = 64
KEPT_ANSWERS: Final = 256

Key = tuple[str, int]  # client, id
Tell = Callable[[int, Json], None]  # channel, answer


class Work(NamedTuple):
    """A request to carry out; `late` is its answer if there is none after `limit_s` seconds."""

    run: Callable[[], object]
    limit_s: float
    late: str


@dataclass
class _Request:
    channel: int
    is_action: bool
    deadline: float
    late: str


class Workers:
    """Threads that do what they are given and end when there is nothing left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads = 0

    def do(self, job: Callable[[], None]) -> bool:
        """Do it soon. False when too much waits already."""
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                return False
            self._waiting.append(job)
            if self._threads == MAX_THREADS:
                return True
            self._threads += 1
        threading.Thread(target=self._work, name="monarch-live-actions", daemon=True).start()
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                job = self._waiting.popleft()
            job()


class PendingRequests:
    """All that is under way, for the hub's thread.

    `tell` sends an answer; `ended` gets the key and the answer from the thread that worked.
    """

    def __init__(self, tell: Tell, ended: Callable[[Key, Json], None]) -> None:
        self._tell = tell
        self._ended = ended
        self._workers = Workers()
        self._pending: dict[Key, _Request] = {}
        self._done: dict[Key, Json] = {}  # actions that are not to be done twice

    def begin(self, channel: int, message: Ask | Do, work: Work, now: float) -> None:
        """Start the work, unless it is under way or done."""
        key = message.client, message.id
        if key in self._done:
            self._tell(channel, self._done[key])
            return
        if key in self._pending:
            self._pending[key].channel = channel
            return
        deadline = now + work.limit_s
        self._pending[key] = _Request(channel, isinstance(message, Do), deadline, work.late)
        if not self._workers.do(lambda: self._ended(key, answer_of(key, work.run))):
            many = f"the kernel has {MAX_WAITING} questions to answer already; ask again later"
            self.end(key, refusal(key, many))

    def end(self, key: Key, answer: Json) -> None:
        """Send an answer that has come; nothing if it comes too late."""
        request = self._pending.pop(key, None)
        if request is None:
            return
        if request.is_action:
            self._done[key] = answer
            if len(self._done) > KEPT_ANSWERS:
                del self._done[next(iter(self._done))]
        self._tell(request.channel, answer)

    def expire(self, now: float) -> None:
        """Answer what is late."""
        for key, request in list(self._pending.items()):
            if request.deadline <= now:
                self.end(key, refusal(key, request.late))

    def next_at(self) -> float | None:
        """Return when the next one is late; None while nothing is under way."""
        return min((request.deadline for request in self._pending.values()), default=None)


def answer_of(key: Key, work: Callable[[], object]) -> Json:
    """Return the answer that the work gives, or what went wrong as a sentence."""
    try:
        return _answer(key, ok=True, value=work())
    except BaseException as error:  # also a KeyboardInterrupt, which a call may end with
        if not isinstance(error, EXPECTED):
            logging.getLogger("monarch_nb").warning("a question of a browser", exc_info=True)
        return refusal(key, sentence(error))


def refusal(key: Key, error: str) -> Json:
    """Return the answer to what cannot be done."""
    return _answer(key, ok=False, error=plain(error))


def _answer(key: Key, **fields: object) -> Json:
    client, number = key
    return {"v": VERSION, "type": "answer", "to": client, "id": number, **fields}


EXPECTED: Final = (MeshError, ValueError, RuntimeError, TimeoutError, KeyboardInterrupt)
"""What explains itself."""


def sentence(error: BaseException) -> str:
    """Return an error as a person reads it: ours explain themselves."""
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, EXPECTED) else f"{type(error).__name__}: {text}"
