"""The controller's end of debuggers in ranks: requests and events of the Debug Adapter Protocol.

Rules of the file: everything is JSON and travels in control messages; who asks gets a future, never
an exception of the transport, and a rank that dies is an answer to all that was asked of it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_nb.core.wire.messages import debug
from monarch_nb.core.wire.messages.codec import Refused, Request

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc

OnEvent = Callable[[dict[str, object]], None]
OnEnd = Callable[[str], None]
A = TypeVar("A")


class DapService:
    """Debuggers in ranks, at most one in each."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._links: dict[int, DapLink] = {}

    def open(self, process: int, on_event: OnEvent, on_end: OnEnd) -> DapLink:
        """Attach to a rank; the link's `opened` says when. `on_event(event)` and `on_end(why)` are
        called in the inbox thread, the second once."""

        def end(why: str) -> None:
            if self._links.get(process) is link:
                del self._links[process]
            on_end(why)

        link = self._links[process] = DapLink(self._proc, process, on_event, end)
        link._open()
        return link

    def on_event(self, event: debug.DapEvent, message: Message) -> None:
        """Pass on the news of a debugger. Inbox thread."""
        link = self._links.get(message.source)
        if link is not None:
            link._heard(event.message)


class DapLink:
    """The debugger in one rank.

    Example:
        >>> link.opened.result(10)                                       # doctest: +SKIP
        >>> link.request("threads", {}).result(5)["body"]["threads"]     # doctest: +SKIP
        [{'id': 1, 'name': 'MainThread'}]
    """

    def __init__(self, proc: Proc, process: int, on_event: OnEvent, on_end: OnEnd) -> None:
        self.opened: Future[None] = Future()
        self._proc = proc
        self._process = process
        self._on_event = on_event
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it was closed, could not be opened, or the rank is gone."""
        return self._over.is_set()

    def request(self, command: str, arguments: dict[str, object]) -> Future[dict[str, object]]:
        """Ask the debugger; its response is a message of the protocol, with `success` false if it
        cannot be had. Returns at once."""
        seq = next(self._numbers)
        request = {"type": "request", "seq": seq, "command": command, "arguments": arguments}
        answered: Future[dict[str, Any]] = Future()

        def then(answer: debug.DapResponse | Refused) -> None:
            if isinstance(answer, Refused):
                refused = {"type": "response", "command": command, "success": False}
                answered.set_result({**refused, "message": answer.error, "body": {}})
            else:
                answered.set_result(answer.message)

        self._ask(debug.DapRequest(request), then)
        return answered

    def close(self) -> Future[None]:
        """Detach: every thread of the rank goes on, nothing is traced any more."""
        closed: Future[None] = Future()
        self._ask(debug.CloseDap(), lambda _: closed.set_result(None))
        return closed

    def _open(self) -> None:
        self._ask(debug.OpenDap(), self._ended)

    def _ask(self, request: Request[A], then: Callable[[A | Refused], None]) -> None:
        self._proc.ask(self._process, request, then)
        self._proc.links.flush()

    def _heard(self, event: dict[str, object]) -> None:
        if event.get("event") == "opened":
            self.opened.set_result(None)
        elif not self.is_over:
            self._on_event(event)

    def _ended(self, answer: debug.DapEnded | Refused) -> None:
        why = answer.error if isinstance(answer, Refused) else answer.ended
        self._over.set()
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(why))
        self._on_end(why)
