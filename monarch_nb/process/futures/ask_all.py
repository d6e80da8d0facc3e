"""One question to any number of processes, and the answers.

Rules of the file: asking waits no longer than it is told to, whatever ranks do. Who has died
refuses. `ask` is not to be called in the inbox thread, and does not ask a rank again that has not
answered such a question the last time: one that is stopped is not buried in questions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.process.process import Waiter, answer_of

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.exit import Exit
    from monarch_nb.process.process import Proc

A = TypeVar("A")


class Question(Waiter, Generic[A]):
    """Put to each of these processes; it stays until the last has answered or died, waited for or
    not. `heard(process, answer)` is called for each answer, then `then()` once."""

    def __init__(
        self,
        proc: Proc,
        requests: Mapping[int, Request[A]],
        then: Callable[[], None] = lambda: None,
        heard: Callable[[int, A | Refused], None] = lambda _process, _answer: None,
    ) -> None:
        self.answers: dict[int, A | Refused] = {}
        """By process, as they come."""
        self.is_given_up = False
        self.kinds = {type(each) for each in requests.values()}
        self._proc = proc
        self._kinds = {process: each.answer() for process, each in requests.items()}
        self._then = then
        self._heard = heard
        self._settling = threading.Lock()
        self._all = threading.Event()
        self._port = proc.new_port()
        proc.waiting[self._port] = self
        for request, asked in _grouped(requests):
            proc.control_all(asked, request, reply=self._port)
        proc.look_for_dead(self)
        if not requests:
            self._end()

    def wait(self, timeout_s: float) -> dict[int, A | Refused]:
        self._all.wait(timeout_s)
        self.is_given_up = True
        return dict(self.answers)

    @property
    def is_over(self) -> bool:
        """Tell whether all have answered, or died."""
        return self._all.is_set()

    def deliver(self, message: Message) -> None:
        kind = self._kinds.get(message.source)
        if kind is not None:
            self._settle(message.source, answer_of(kind, message))

    def awaited(self) -> list[int]:
        return [process for process in self._kinds if process not in self.answers]

    def waits_for(self, process: int) -> bool:
        return process in self._kinds and process not in self.answers

    def lost(self, ended: Exit) -> None:
        self._settle(ended.process, Refused(ended.describe()))

    def abandon(self, ended: Exit) -> None:
        for process in self._kinds:
            self._settle(process, Refused(ended.describe()))

    def _settle(self, process: int, answer: A | Refused) -> None:
        with self._settling:
            if process in self.answers:
                return
            self.answers[process] = answer
            is_last = len(self.answers) == len(self._kinds)
        self._heard(process, answer)
        if is_last:
            self._end()

    def _end(self) -> None:
        self._proc.waiting.pop(self._port, None)
        self._all.set()
        self._then()


def _grouped(requests: Mapping[int, Request[A]]) -> list[tuple[Request[A], list[int]]]:
    # equal ones are asked together
    found: list[tuple[Request[A], list[int]]] = []
    for process, request in requests.items():
        if found and found[-1][0] == request:
            found[-1][1].append(process)
        else:
            found.append((request, [process]))
    return found


def ask(proc: Proc, requests: Mapping[int, Request[A]], timeout_s: float) -> dict[int, A]:
    """Process to its answer, of those that answer in time; refusals are none."""
    kinds = {type(each) for each in requests.values()}
    owing = [
        each
        for each in proc.waiters()
        if isinstance(each, Question) and each.is_given_up and each.kinds & kinds
    ]
    asked = {
        process: request
        for process, request in requests.items()
        if process not in proc.dead and not any(each.waits_for(process) for each in owing)
    }
    found = Question(proc, asked).wait(timeout_s) if asked else {}
    return {process: answer for process, answer in found.items() if not isinstance(answer, Refused)}
