"""One question to any number of ranks, and the answers that come in time; and counting answers.

Rules of the file: asking waits no longer than it is told to, whatever ranks do; who does not answer
is missing. A rank that has not answered a question the last time is not asked it again before it
has: one that is stopped is not buried in questions. Not to be called in the inbox thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from monarch_nb.process.process import Waiter, json_of

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc


class _Question(Waiter):
    """Put to any number of ranks. It stays until the last of them has answered or died, also when
    nobody waits for it any more."""

    __slots__ = ("_all", "_owing", "_port", "_proc", "answers", "is_given_up", "verb")

    def __init__(self, proc: Proc, verb: str, bodies: Mapping[int, dict[str, Any]]) -> None:
        self.verb = verb
        self.answers: dict[int, dict[str, Any]] = {}
        self.is_given_up = False
        self._proc = proc
        self._owing = set(bodies)
        self._all = threading.Event()
        self._port = proc.new_port()
        proc.ports[self._port] = self.deliver
        for process, body in bodies.items():
            proc.control(process, verb, body, reply=self._port)
        for process in self._owing & proc.dead.keys():
            self._settle(process)

    def wait(self, timeout_s: float) -> dict[int, dict[str, Any]]:
        if self._owing:
            self._all.wait(timeout_s)
        self.is_given_up = True
        return dict(self.answers)

    def deliver(self, message: Message) -> None:
        if message.source in self._owing:
            self.answers[message.source] = json_of(message)
        self._settle(message.source)

    def waits_for(self, process: int) -> bool:
        return process in self._owing

    def lost(self, ended: Exit) -> None:
        self._settle(ended.process)

    def abandon(self, ended: Exit) -> None:  # noqa: ARG002  this process leaves
        for process in list(self._owing):
            self._settle(process)

    def _settle(self, process: int) -> None:
        self._owing.discard(process)
        if not self._owing:
            self._proc.ports.pop(self._port, None)
            self._all.set()


def ask(
    proc: Proc, verb: str, bodies: Mapping[int, dict[str, Any]], timeout_s: float
) -> dict[int, dict[str, Any]]:
    """Process to its answer; `bodies` are what each is asked. Errors are no answers."""
    owing = [
        each
        for each in proc.waiters()
        if isinstance(each, _Question) and each.verb == verb and each.is_given_up
    ]
    asked = {
        process: body
        for process, body in bodies.items()
        if process not in proc.dead and not any(each.waits_for(process) for each in owing)
    }
    found = _Question(proc, verb, asked).wait(timeout_s) if asked else {}
    return {process: answer for process, answer in found.items() if "error" not in answer}


class Countdown:
    """Calls back when as many events have come as were expected."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._left = count
        self._then = then
        self._lock = threading.Lock()
        if count == 0:
            then()

    def one_less(self) -> None:
        with self._lock:
            self._left -= 1
            done = self._left == 0
        if done:
            self._then()
