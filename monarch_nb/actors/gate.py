"""The order of one sender's messages to one actor, where some of them wait for tensors.

A call with tensors of a mesh reaches its actor when the stream that computes them has come so far.
What its sender sends later would be there before; so it goes by the actor's gate, and waits there.
Such a call has a *ticket*. Until the sender knows that its batch was run, messages behind it name
it; they are let through when it is *open*: its call is on its way to the actor, or will never be.

Rules: nobody waits for a ticket that has not left before the message. Tickets are numbered by their
sender, and one that is open opens those before it: computations of one stream come in their order,
and a call from another stream waits at the gate itself. Who sends no tensors pays for one look at
an empty table.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, final

from monarch_nb.core.wire.frames import Message
from monarch_nb.errors import MeshError, RemoteProtocolError
from monarch_nb.process.futures.calls import Target
from monarch_nb.process.futures.future import Future

_HEAD: Final = struct.Struct("<QQH")
"""The sender, the ticket of the message itself (0: none), and how many pairs follow."""
_PAIR: Final = struct.Struct("<QQ")
"""A process (0: all), and the ticket that the message waits for there."""
_EVERYBODY: Final = 0


# ------------------------------------------------------------------------------------- the sender


class Stream(Protocol):
    """Computes tensors in the order in which it was asked."""

    def flush(self) -> None: ...


@final
class Ticket:
    """Keeps the place of a call to some actors that goes with a batch of a stream."""

    __slots__ = ("_batch", "_is_void", "number", "port", "processes", "stream")

    def __init__(self, stream: Stream, target: Target) -> None:
        self.number = next(_numbers)
        self.stream = stream
        self.port = target.state.number
        self.processes = frozenset(target.processes)
        self._batch: Future[Any] | None = None
        self._is_void = False

    def leave_with(self, batch: Future[Any]) -> None:
        self._batch = batch

    def make_void(self) -> None:
        """Note that its batch will not leave."""
        self._is_void = True

    def has_left(self) -> bool:
        return self._batch is not None

    def is_over(self) -> bool:
        return self._is_void or (self._batch is not None and self._batch.done())


_numbers: Final = itertools.count(1)
pending: Final[dict[int, collections.deque[Ticket]]] = {}
"""Tickets that may not be open yet, by the port of their actors, in the order of their calls."""
_lock: Final = threading.Lock()


def note(ticket: Ticket) -> None:
    """Have what is sent to its actors from now on come behind its call, which was issued."""
    with _lock:
        pending.setdefault(ticket.port, collections.deque()).append(ticket)
        _forget_first(ticket.port)


def behind(target: Target, process: int) -> Target:
    """Return where this process sends what has to come behind all that it has sent so far."""
    after = _awaited(target, None)
    return target.by_gate(_packed(target, process, 0, after)) if after else target


def prefix_of(ticket: Ticket, target: Target, process: int) -> bytes:
    """Return what stands before the call of a ticket, on its way from the stream to the gate."""
    return _packed(target, process, ticket.number, _awaited(target, ticket.stream))


def _awaited(target: Target, stream: Stream | None) -> dict[int, int]:
    # By process, the ticket to wait for there. A stream waits for what others have to do only.
    found = {}
    for ticket, processes in _last_of_each(target):
        if ticket.stream is stream:
            continue
        if not ticket.has_left():
            with contextlib.suppress(MeshError, RuntimeError):  # of a rank that is lost
                ticket.stream.flush()
        if ticket.has_left():
            found.update(dict.fromkeys(processes, ticket.number))
    return found


def _last_of_each(target: Target) -> list[tuple[Ticket, frozenset[int]]]:
    # The last ticket of each process that has one, with the processes of which it is the last
    port, left = target.state.number, frozenset(target.processes)
    found = []
    with _lock:
        _forget_first(port)
        for ticket in reversed(pending.get(port, ())):
            if not left:
                break
            if not ticket.is_over() and (there := left & ticket.processes):
                found.append((ticket, there))
                left -= there
    return found


def _forget_first(port: int) -> None:
    line = pending.get(port)
    while line and line[0].is_over():
        line.popleft()
    if line is not None and not line:
        del pending[port]


def _packed(target: Target, sender: int, ticket: int, after: dict[int, int]) -> bytes:
    numbers = set(after.values())
    if len(numbers) == 1 and len(after) == len(set(target.processes)):
        after = {_EVERYBODY: numbers.pop()}
    pairs = [_PAIR.pack(*pair) for pair in after.items()]
    return _HEAD.pack(sender, ticket, len(pairs)) + b"".join(pairs)


# ------------------------------------------------------------------------------------ the receiver


class _Waiting(NamedTuple):
    """`after`: the ticket that it waits for; `ticket`: its own, if it has one."""

    after: int
    ticket: int
    message: Message


class _Line:
    """Keeps messages of one sender for one actor until they may pass, in the order of sending."""

    def __init__(self) -> None:
        self.opened = 0
        self.waiting: collections.deque[_Waiting] = collections.deque()

    def join(self, new: _Waiting) -> None:
        if not new.ticket:
            self.waiting.append(new)
            return
        # it comes late: those behind it are here
        later = (at for at, each in enumerate(self.waiting) if new.ticket <= max(each[:2]))
        self.waiting.insert(next(later, len(self.waiting)), new)

    def open(self, ticket: int) -> None:
        self.opened = max(self.opened, ticket)

    def next(self) -> _Waiting | None:
        if self.waiting and self.waiting[0].after <= self.opened:
            return self.waiting.popleft()
        return None


class Gate:
    """Let messages to the actors of one process through in order.

    `deliver` takes what is let through; `has_ended(port)` tells that there is no actor any more.
    Any thread in which no interrupt can come up.
    """

    def __init__(
        self, process: int, deliver: Callable[[Message], None], has_ended: Callable[[int], bool]
    ) -> None:
        self._process = process
        self._deliver = deliver
        self._has_ended = has_ended
        self._lines: dict[tuple[int, int], _Line] = {}
        self._lock = threading.RLock()  # what is delivered may be answered here

    def arrive(self, message: Message) -> None:
        """Let a message through, now or when the ticket is open that it waits for."""
        sender, ticket, after, rest = _unpacked(message, self._process)
        message.pass_gate(rest)
        with self._lock:
            if self._has_ended(message.port):
                self._deliver(message)
                return
            line = self._line(sender, message.port)
            line.join(_Waiting(after, ticket, message))
            self._let_through(line)

    def open(self, sender: int, port: int, ticket: int) -> None:
        """Let through what waits for a ticket. Twice is fine."""
        with self._lock:
            if not self._has_ended(port):
                line = self._line(sender, port)
                line.open(ticket)
                self._let_through(line)

    def end(self, port: int) -> None:
        """Let everything through to an actor that has ended: who waits there is answered."""
        with self._lock:
            for key in [each for each in self._lines if each[1] == port]:
                for each in self._lines.pop(key).waiting:
                    self._deliver(each.message)

    def _line(self, sender: int, port: int) -> _Line:
        return self._lines.setdefault((sender, port), _Line())

    def _let_through(self, line: _Line) -> None:
        while (first := line.next()) is not None:
            self._deliver(first.message)
            line.open(first.ticket)


def _unpacked(message: Message, process: int) -> tuple[int, int, int, bytes | memoryview]:
    # The sender, the ticket of the message, the one that it waits for, and what is the actor's
    payload = message.payload
    try:
        sender, ticket, count = _HEAD.unpack_from(payload)
        size = _HEAD.size + count * _PAIR.size
        after: dict[int, int] = dict(_PAIR.iter_unpack(payload[_HEAD.size : size]))
    except struct.error as error:
        raise RemoteProtocolError(f"a message to the gate of an actor: {error}") from None
    awaited = after.get(process, after.get(_EVERYBODY, 0))
    return sender, ticket, awaited, payload[size:]
