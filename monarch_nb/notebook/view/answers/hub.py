"""The thread that looks at the meshes and tells browsers, while there are any.

Rules of the file: messages may come on any thread and are only put into a queue; one thread reads
it, looks, and sends. It exists only while somebody looks or waits for an answer. A channel whose
`send` raises is closed, which disturbs no other. What may take long is done in other threads
(`pending_requests.py`), so that updates never wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from monarch_nb.notebook.view.answers import actions, debug_sessions, questions
from monarch_nb.notebook.view.answers.actions import Parts
from monarch_nb.notebook.view.answers.debug_sessions import DebugSessions
from monarch_nb.notebook.view.answers.pending_requests import Key, PendingRequests, Work, refusal
from monarch_nb.notebook.view.answers.questions import Context
from monarch_nb.notebook.view.browser.channels import (
    MAX_CLIENTS,
    MAX_LINES,
    Channels,
    LogSubscribers,
    Turn,
)
from monarch_nb.notebook.view.browser.protocol import (
    VERSION,
    Ask,
    Bye,
    Do,
    Follow,
    Hello,
    Malformed,
    Message,
    parse,
)
from monarch_nb.notebook.view.feed.encoding import Json
from monarch_nb.notebook.view.feed.feed import Feed

if TYPE_CHECKING:
    from monarch_nb.notebook.view.answers.source import Source

MAX_WAITING: Final = 10_000  # messages of browsers
MAX_CHANNELS: Final = 256
GATHER_S: Final = 0.004
JOIN_S: Final = 1.0

Send = Callable[[Json], None]


class Channel:
    """One comm or one widget. Any thread may use it."""

    def __init__(self, hub: Hub, number: int, send: Send) -> None:
        self.number = number
        self.send = send
        self._hub = hub

    def receive(self, message: object) -> None:
        """Take a message of the browser's. Returns at once."""
        self._hub._put(lambda: self._hub._receive(self.number, message))

    def close(self) -> None:
        self._hub._put(lambda: self._hub._close(self.number))


class Hub:
    """What all browsers of a kernel are served by.

    Example:
        >>> channel = session.live.open(send)                         # doctest: +SKIP
        >>> channel.receive({"v": 1, "type": "hello", ...})            # doctest: +SKIP
    """

    def __init__(self, parts: Parts, source: Source) -> None:
        self.source = source
        where = lambda record: self.source.where(record)  # noqa: E731, PLW0108  tests have another
        self.feed = Feed(time.monotonic(), where)
        self._parts = parts
        self._changed = threading.Condition()
        self._events: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._numbers = 0
        self._has_news = self._is_urgent = False
        # below: of the thread alone
        self._open: dict[int, Channel] = {}
        self._channels = Channels()
        self._subscribers: dict[int, LogSubscribers] = {}
        self._requests = PendingRequests(self._send, self._done)
        self._debug_sessions = DebugSessions(parts, self._tell)
        self._is_sampling = False
        self._complaint = ""

    def open(self, send: Send) -> Channel:
        """Open a channel; `send(message)` is called by the hub's thread. Any thread."""
        with self._changed:
            self._numbers += 1
            channel = Channel(self, self._numbers, send)
        self._put(lambda: self._admit(channel))
        return channel

    def notify(self, urgent: bool) -> None:
        """Look again: ranks have told something; urgent, if one has died or a mesh has come. Any
        thread.
        """
        with self._changed:
            is_new = not self._has_news or (urgent and not self._is_urgent)
            if self._thread is not None and is_new:
                self._has_news, self._is_urgent = True, self._is_urgent or urgent
                self._changed.notify()

    def close(self) -> None:
        self._debug_sessions.close()
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def __repr__(self) -> str:
        return f"<Hub: {self._channels!r}, {self.feed.malformed} malformed messages>"

    # ------------------------------------------------------------------------ the one thread

    def _put(self, event: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            if len(self._events) >= MAX_WAITING:
                self.feed.count_malformed()
                return
            self._events.append(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="monarch-live", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while (events := self._wait()) is not None:
                for event in events:
                    self._safely(event)
                self._safely(self._tick)
        finally:
            self._rest()

    def _wait(self) -> list[Callable[[], None]] | None:
        # What has come, or nothing when something is due; None when there is nothing to do
        with self._changed:
            while not self._closed:
                if self._events:
                    events = list(self._events)
                    self._events.clear()
                    return events
                if self._has_news:
                    gather_s = GATHER_S if self.feed.hosts > 1 else 0.0
                    self._channels.news(time.monotonic() + gather_s, urgent=self._is_urgent)
                    self._has_news = self._is_urgent = False
                if (at := self._next_at()) is None:
                    self._rest()
                    self._thread = None
                    return None
                if (left := at - time.monotonic()) <= 0:
                    return []
                self._changed.wait(left)
        return None

    def _next_at(self) -> float | None:
        dues = (self._channels.next_at(), self._requests.next_at())
        return min((at for at in dues if at is not None), default=None)

    def _safely(self, step: Callable[[], None]) -> None:
        # A fault of ours is told once, and ends nothing
        try:
            step()
        except Exception as error:
            if (told := repr(error)) != self._complaint:
                self._complaint = told
                logging.getLogger("monarch_nb").exception("the mesh view could not be updated")

    def _tick(self) -> None:
        now = time.monotonic()
        self._requests.expire(now)
        turns = self._channels.turns(now)
        period_s = self._channels.period_s()
        if period_s is None:
            self._rest()
        if not turns or period_s is None:
            return
        self._safely(partial(self._update_feed, period_s))  # a client may be shut down just now
        for turn in turns:
            self._take(turn)

    def _update_feed(self, period_s: float) -> None:
        self._is_sampling = True
        sample_s = 0.1 if period_s < 1 else 1.0
        inputs = self.source.read(sample_s, self._channels.parts(), self.notify)
        self.feed.update(inputs, time.monotonic())

    def _rest(self) -> None:
        # Nobody looks: ranks are not sampled any more
        if self._is_sampling:
            self._is_sampling = False
            self.source.rest()

    # ----------------------------------------------------------------------------- telling

    def _take(self, turn: Turn) -> None:
        if turn.base is not None:
            delta = self.feed.delta(turn.base, turn.view)
            if delta is None:
                self._channels.resync(turn.channel)
            elif delta:
                self._send(turn.channel, delta)
                self._channels.told(turn.channel, self.feed.n)
        for client in turn.states:
            self._send(turn.channel, self.feed.state(client, turn.view))
            self._channels.told(turn.channel, self.feed.n)
        self._tell_lines(turn)

    def _tell_lines(self, turn: Turn) -> None:
        subscribers = self._subscribers.get(turn.channel)
        if subscribers is None or subscribers.seq is None:
            return
        subscribers.keep_only(self._channels.clients(turn.channel))
        if not subscribers:
            del self._subscribers[turn.channel]
            return
        if self.source.last_line() == subscribers.seq:
            return
        seq, scope = subscribers.seq, subscribers.scope
        lines, skipped, seq = self.source.lines_after(seq, *scope, MAX_LINES)
        subscribers.looked_at(seq)
        if (rows := [questions.row(line) for line in subscribers.wanted(lines)]) or skipped:
            message = {"v": VERSION, "type": "log", "lines": rows, "skipped": skipped}
            self._send(turn.channel, message)

    def _send(self, number: int, message: Json) -> None:
        channel = self._open.get(number)
        if channel is None:
            return
        try:
            channel.send(message)
        except Exception:  # the comm was closed at this moment
            logging.getLogger("monarch_nb").debug("a mesh view is gone", exc_info=True)
            self._close(number)

    def _tell(self, number: int, message: Json) -> None:
        # Send it soon. Any thread.
        self._put(lambda: self._send(number, message))

    def _refuse(self, number: int, client: str, error: str) -> None:
        self._send(number, {"v": VERSION, "type": "error", "to": client, "error": error})

    # --------------------------------------------------------------------------- listening

    def _admit(self, channel: Channel) -> None:
        if len(self._open) >= MAX_CHANNELS:
            del self._open[next(iter(self._open))]
        self._open[channel.number] = channel

    def _close(self, number: int) -> None:
        self._open.pop(number, None)
        self._subscribers.pop(number, None)
        self._debug_sessions.close(number)
        self._channels.close(number)

    def _receive(self, number: int, data: object) -> None:
        message = parse(data)
        if isinstance(message, Malformed):
            self.feed.count_malformed()
            self._answer_malformed(number, message)
        elif number in self._open:
            self._handle(number, message, time.monotonic())

    def _answer_malformed(self, number: int, message: Malformed) -> None:
        if message.id is None or not message.client:
            self._refuse(number, message.client, message.error)
        else:
            self._send(number, refusal((message.client, message.id), message.error))

    def _handle(self, number: int, message: Message, now: float) -> None:
        if isinstance(message, Hello):
            if not self._channels.hello(number, message, now):
                many = f"{MAX_CLIENTS} views share this connection already; close some"
                self._refuse(number, message.client, many)
            return
        if isinstance(message, Bye):
            self._channels.bye(number, message.client)
            return
        is_known = self._channels.heard(number, message.client, now)
        self._debug_sessions.keep_alive(number, message.client)
        if isinstance(message, Ask | Do):
            self._requests.begin(number, message, self._work(number, message), now)
        elif not is_known:
            self._refuse(number, message.client, "the kernel does not know this view: say hello")
        elif isinstance(message, Follow):
            self._follow(number, message)

    def _follow(self, number: int, wish: Follow) -> None:
        subscribers = self._subscribers.setdefault(number, LogSubscribers())
        subscribers.follow(wish, self.source.last_line())

    def _work(self, number: int, wish: Ask | Do) -> Work:
        if wish.what in debug_sessions.WORDS:
            run = partial(self._debug_sessions.perform, number, wish)
            return Work(run, debug_sessions.LIMIT_S, debug_sessions.LATE)
        if isinstance(wish, Ask):
            return questions.work_of(Context(self.source, self.feed), wish)
        return actions.work_of(self._parts, wish)

    def _done(self, key: Key, answer: Json) -> None:
        # Called by the thread that did it
        self._put(lambda: self._requests.end(key, answer))
