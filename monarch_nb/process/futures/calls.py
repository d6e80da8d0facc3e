"""Calls in flight: who is asked, what has come, what to do when a peer is lost or the caller gives
up.

Rules: a call ends exactly once; the first error ends a call to many; an answer that comes after the
end is dropped. Nothing is decoded here before somebody asks for the value.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from monarch_nb.core.casting import Run
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.wire.frames import GATE_BIT, REPLY, SHARED, Message
from monarch_nb.core.wire.messages.actors import Interrupt
from monarch_nb.process import remote_errors
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.process import Proc, Receivers, Wait, Waiter

if TYPE_CHECKING:
    from monarch_nb.core.shape.extent import Shape
    from monarch_nb.process.supervision.supervision import MeshState

R = TypeVar("R")

_gathering: Final = threading.Lock()


class Target:
    """An endpoint of some ranks of a mesh, to be called; `ranks[i]` is the mesh rank of member i.

    Made once per endpoint and version of the mesh. `extent`: labels and sizes as a call has them.
    `prefix` stands before what is sent to `port`, where that is the gate of the actors.
    """

    __slots__ = (
        *("_receivers", "extent", "method", "port", "prefix", "processes", "ranks"),
        *("shape", "state", "token", "version"),
    )

    def __init__(
        self,
        state: MeshState,
        method: str,
        processes: Sequence[int],
        ranks: Sequence[int],
        shape: Shape,
        token: object = None,
    ) -> None:
        self.token = token  # a mesh in use is not garbage
        self.state = state
        self.method = method
        self.port = state.number
        self.prefix = b""
        self.processes = tuple(processes)
        self.ranks = tuple(ranks)
        self.shape = shape
        self.extent = tuple(shape.labels), tuple(shape.ndslice.sizes)
        self.version = state.version
        self._receivers: Receivers | None = None

    def receivers(self, proc: Proc) -> Receivers:
        """Return the processes, each with its place in the target, as this process reaches them."""
        if self._receivers is None:
            members = [(process, index) for index, process in enumerate(self.processes)]
            self._receivers = proc.receivers(members)
        return self._receivers

    @property
    def what(self) -> str:
        return f"{self.state.name}.{self.method}"

    def member(self, index: int) -> Target:
        one = self._copy()
        one.processes, one.ranks = (self.processes[index],), (self.ranks[index],)
        one._receivers = None
        return one

    def by_gate(self, prefix: bytes) -> Target:
        """Return the same, reached by the gate of the actors."""
        one = self._copy()
        one.port, one.prefix = self.port | GATE_BIT, prefix
        return one

    def _copy(self) -> Target:
        one = object.__new__(Target)
        for name in Target.__slots__:
            setattr(one, name, getattr(self, name))
        return one


class _Pending(Future[R], Waiter):
    __slots__ = ("_proc", "port", "tag", "target")
    can_be_cancelled = True
    interrupts_what_runs = False
    """Cancelling it ends what its actor does now, and drops nothing that waits there."""

    def _begin(self, proc: Proc, target: Target, tag: int) -> None:
        self._proc = proc
        self.target = target
        self.tag = tag
        self._keep = target.token
        self.port = proc.new_port()
        proc.waiting[self.port] = self

    def _close(self) -> bool:
        return self._proc.waiting.pop(self.port, None) is not None

    def _error_of(self, message: Message | Exit) -> BaseException:
        if isinstance(message, Exit):
            return self._loss(message)
        target = self.target
        index = message.rank if len(target.ranks) > 1 else 0
        rank = target.ranks[index] if index < len(target.ranks) else None
        return remote_errors.unpack(
            message.payload, what=target.what, rank=rank, size=len(target.state.processes)
        )

    def _note_failure(self, message: Message) -> None:
        target = self.target
        index = message.rank if len(target.ranks) > 1 else 0
        if index < len(target.ranks):
            self._proc.call_failed(target.state, self.port, [target.ranks[index]])

    def awaited(self) -> Sequence[int]:
        return self.target.processes

    def wait_for_people(self) -> Wait | None:
        target = self.target
        if target.state.internal:
            return None
        left = set(self.awaited())
        pairs = zip(target.ranks, target.processes, strict=True)
        ranks = tuple(rank for rank, process in pairs if process in left)
        return Wait(target.what, "", ranks, len(target.state.processes), self.tag)

    def lost(self, ended: Exit) -> None:
        # the error is made by who asks for it: with 100 000 calls in flight, most are never asked
        if self._close():
            self._arrive(ended)

    def _loss(self, ended: Exit) -> BaseException:
        target = self.target
        gone = {ended.process} | (self._proc.dead.keys() & set(self.awaited()))
        pairs = zip(target.ranks, target.processes, strict=True)
        return target.state.loss(ended, [r for r, p in pairs if p in gone], target.what)

    def abandon(self, ended: Exit) -> None:
        for process in set(self.awaited()):
            self.lost(Exit(process, reason=ended.reason))

    def cancel(self) -> bool:
        if self.done() or not self.can_be_cancelled:
            return False
        cancel_all(self._proc, [self])
        return True


def cancel_made_by(proc: Proc, tag: int | None) -> None:
    """Cancel what is in flight for a notebook cell; None: everything."""
    _cancel(proc, [each for each in _in_flight(proc) if tag in {None, each.tag}])


def cancel_owed_by(proc: Proc, processes: Sequence[int]) -> bool:
    """Cancel what these processes owe an answer to; whether there was anything."""
    found = [each for each in _in_flight(proc) if any(map(each.waits_for, processes))]
    _cancel(proc, found)
    return bool(found)


def _in_flight(proc: Proc) -> list[Any]:
    return [each for each in proc.waiters() if hasattr(each, "tag")]


def _cancel(proc: Proc, found: Sequence[Any]) -> None:
    for each in reversed(found):  # else one that waits would begin because the first has ended
        if not isinstance(each, _Pending):
            each.cancel()  # a cell
    cancel_all(proc, [each for each in found if isinstance(each, _Pending)])


def cancel_all(proc: Proc, calls: Sequence[_Pending[Any]]) -> None:
    """Cancel calls with one message per actor, the newest first: none that waits is begun."""
    for state in {call.target.state for call in calls}:
        proc.calls_cancelled(state)
    replies: dict[tuple[int, int], list[int]] = {}
    for call in reversed([each for each in calls if each.can_be_cancelled]):
        for process in set(call.awaited()):
            replies.setdefault((process, call.target.state.number), []).append(call.port)
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for (process, port), ports in sorted(replies.items()):
        alike.setdefault((port, tuple(ports)), []).append(process)
    for (port, owed), processes in alike.items():
        proc.control_all(processes, Interrupt(port, list(owed)))
    told: dict[int, set[int]] = {}
    for call in calls:
        if call.interrupts_what_runs:
            told.setdefault(call.target.state.number, set()).update(call.awaited())
    for port, running in told.items():
        proc.control_all(sorted(running), Interrupt(port, [], running=True))


class SingleCall(_Pending[R]):
    __slots__ = ()

    def deliver(self, message: Message) -> None:
        if message.kind != REPLY:
            self._note_failure(message)
        if self._close():
            self._arrive(message)
        else:
            self._proc.discard(message)

    def _decode(self, content: Message) -> R:
        if content.kind != REPLY:
            raise self._error_of(content)
        found: R = self._proc.decode(content)
        return found


Answer = Message | Callable[[], Any]


def _read(decode: Callable[[Message], Any], _place: int, answer: Answer) -> Any:
    return decode(answer) if isinstance(answer, Message) else answer()


class GatherCall(_Pending[Any]):
    """Every member is asked; done when all have answered or one has failed."""

    __slots__ = ("_answers", "_found", "_missing")
    counted_kinds: ClassVar[tuple[int, ...]] = (REPLY,)
    """The kinds of messages that count as answers; another kind is a failure of the call."""

    def expect(self) -> None:
        self._missing = len(self.target.processes)
        self._answers: list[Message | None] = [None] * self._missing
        self._found: ValueMesh[Any] | None = None

    def deliver(self, message: Message) -> None:
        if message.kind != REPLY:
            self._note_failure(message)
            if self._close():
                self._arrive(message)
            return
        if message.rank < len(self._answers) and self._answers[message.rank] is None:
            self._answers[message.rank] = message
            self._count_down(1)

    def deliver_equal(self, message: Message, runs: Sequence[Run]) -> Sequence[Run]:
        if message.kind not in self.counted_kinds:
            return runs
        answers, came, rest = self._answers, 0, []
        for run in runs:
            _, begin, size = run
            end = begin + size
            if answers[begin:end].count(None) == size:
                answers[begin:end] = [message] * size
                came += size
            else:
                rest.append(run)
        self._count_down(came)
        return rest

    def _count_down(self, answers: int) -> None:
        self._missing -= answers
        if not self._missing and self._close():
            self._arrive(None)

    def awaited(self) -> Sequence[int]:
        pairs = zip(self.target.processes, self._answers, strict=True)
        return [process for process, answer in pairs if answer is None]

    def _decode(self, content: Message | None) -> ValueMesh[Any]:
        if content is not None:
            error = self._error_of(content)
            error.values = self.answered()  # type: ignore[attr-defined]  # of whatever was raised
            raise error
        answers = [each for each in self._answers if each is not None]
        if len(answers) == 1:
            return ValueMesh(self.target.shape, [self._proc.decode(answers[0])])
        return self._gathered()

    def _gathered(self) -> ValueMesh[Any]:
        # The answers, not looked at. The same mesh for whoever asks: its end gives memory back.
        with _gathering:
            if self._found is None:
                unread = self._proc.payloads.unread
                answers = [
                    unread(each) if each is not None and each.flags & SHARED else each
                    for each in self._answers
                ]
                self._found = ValueMesh._lazy(self.target.shape, answers, self._reader())
            return self._found

    def _reader(self) -> Callable[[int, Answer], Any]:
        """Return what makes a value of a member's answer; it keeps nothing of this call, which
        would keep what ranks have lent."""
        return partial(_read, self._proc.decode)

    def answered(self) -> dict[int, Any]:
        found = {}
        for rank, answer in zip(self.target.ranks, self._answers, strict=True):
            if answer is not None:
                # one that cannot be unpickled here is left out
                with contextlib.suppress(Exception):
                    found[rank] = self._proc.decode(answer)
        return found


class _StreamItem(Future[R]):
    __slots__ = ("_source",)
    _source: StreamCall

    @classmethod
    def of(cls, source: StreamCall) -> _StreamItem[Any]:
        item = make(cls)
        item._source = source
        return item

    def _decode(self, content: Message) -> R:
        if content.kind != REPLY:
            raise self._source._error_of(content)
        found: R = self._source._proc.decode(content)
        return found

    def cancel(self) -> bool:
        return not self.done() and self._source.cancel()


class StreamCall(_Pending[None]):
    """Every member is asked; answers are handed out in the order in which they come."""

    __slots__ = ("_answered", "_items", "_missing", "_next")

    def expect(self) -> list[Future[Any]]:
        self._missing = len(self.target.processes)
        self._answered: set[int] = set()
        self._next: queue.SimpleQueue[_StreamItem[Any]] = queue.SimpleQueue()
        items: list[Future[Any]] = []
        for _ in range(self._missing):
            item = _StreamItem.of(self)
            self._next.put(item)
            items.append(item)
        return items

    def deliver(self, message: Message) -> None:
        if self._missing <= 0 or message.rank in self._answered:
            self._proc.discard(message)
            return
        if message.kind != REPLY:
            self._note_failure(message)
        self._missing -= 1
        self._answered.add(message.rank)
        self._next.get()._arrive(message)
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        if self._close():
            self._set_result(None)

    def awaited(self) -> Sequence[int]:
        return [p for i, p in enumerate(self.target.processes) if i not in self._answered]

    def lost(self, ended: Exit) -> None:
        for index, process in enumerate(self.target.processes):
            if process == ended.process and index not in self._answered and self._missing:
                self._answered.add(index)
                self._missing -= 1
                self._next.get()._arrive(ended)
        if not self._missing:
            self._finish()
