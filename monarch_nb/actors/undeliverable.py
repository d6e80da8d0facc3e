"""What an actor has sent and nobody will get: brought back to its `_handle_undeliverable_message`.

Rules: only an actor that has the hook pays. Its messages carry, behind the pickle, who sent them
(flag `RETURN`), so that a dead actor's port can send a notice back; and they are remembered until
a fence that follows them is answered, so that a process which dies before takes none with it
unnoticed. A call whose future fails is never told here: its caller knows. Runs no user code.
"""

from __future__ import annotations

import collections
import itertools
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

from monarch_nb.core.wire.frames import CALL, RETURN, Message
from monarch_nb.core.wire.messages.actors import Fence, Undelivered
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.process.ids import ActorId
from monarch_nb.process.payloads import Payload

if TYPE_CHECKING:
    from monarch_nb.process.futures.calls import Target
    from monarch_nb.process.instance import Instance
    from monarch_nb.process.process import Proc

_TRAILER: Final = struct.Struct("<QH")  # the sender's port, and the length of what stands before
_LONGEST: Final = 0xFFFF
KEPT: Final = 4096  # messages to one process that wait for their fence; older ones are forgotten


@final
@dataclass(frozen=True)
class UndeliverableMessageEnvelope:
    """A message that came back. `message` names it ("workers.step", "port"), `error` says why.

    `sender()`, `dest()` and `error_msg()` are Monarch's spelling.
    """

    _sender: ActorId
    _dest: str
    message: str
    error: str

    def sender(self) -> ActorId:
        """Return the address of the actor that sent it."""
        return self._sender

    def dest(self) -> str:
        """Return the address that it was sent to, as text."""
        return self._dest

    def error_msg(self) -> str:
        """Why nobody got it: the same as `error`."""
        return self.error

    def __str__(self) -> str:
        return f"{self.message} to {self._dest} could not be delivered: {self.error}"


@dataclass(frozen=True)
class _Note:
    number: int
    sender: int
    dest: str
    what: str


def sealed(payload: Payload, sender: Instance, what: str) -> Payload:
    """Put its sender behind the pickle of a payload, where unpickling does not look."""
    name = what.encode()[:_LONGEST]
    trailer = name + _TRAILER.pack(sender.port, len(name))
    return Payload(payload.payload + trailer, payload.buffers, payload.flags | RETURN)


def _unsealed(message: Message) -> tuple[int, str]:
    payload = message.payload
    sender, length = _TRAILER.unpack(payload[-_TRAILER.size :])
    name = bytes(payload[-_TRAILER.size - length : -_TRAILER.size])
    return sender, name.decode(errors="replace")


def send_back(proc: Proc, message: Message, dest: str, why: str) -> None:
    """Tell the sender of a message that nobody is there, if it wants to know."""
    if message.flags & RETURN:
        sender, what = _unsealed(message)
        proc.control(message.source, Undelivered(sender, what, dest, why))


class Sender(Protocol):
    @property
    def instance(self) -> Instance: ...
    def returned(self, message: UndeliverableMessageEnvelope) -> None: ...


class Returns:
    """What the actors of this process have sent, until it has arrived."""

    def __init__(self, proc: Proc, senders: Mapping[int, Sender]) -> None:
        self._proc = proc
        self._senders = senders
        self._unproven: dict[int, collections.deque[_Note]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    # the sender's thread

    def cast(
        self, sender: Instance, target: Target, payload: Payload, tag: int, indices: Iterable[int]
    ) -> None:
        payload = sealed(payload, sender, target.what)
        members = [(target.processes[index], index) for index in indices]
        self._proc.cast(self._proc.receivers(members), CALL, target.port, payload, tag=tag)
        for _, index in members:
            self.sent_call(sender, target, index)

    def sent_call(self, sender: Instance, target: Target, index: int) -> None:
        process = target.processes[index]
        dest = f"{process:016x}/{target.state.name}[{target.ranks[index]}]"
        self.sent(sender, process, dest, target.what)

    def sent(self, sender: Instance, process: int, dest: str, what: str) -> None:
        if process == self._proc.id:
            return
        with self._lock:
            note = _Note(next(self._numbers), sender.port, dest, what)
            waiting = self._unproven.get(process)
            if waiting is not None:
                waiting.append(note)
                return
            self._unproven[process] = collections.deque([note], KEPT)
        self._raise_fence(process, note.number)

    def _raise_fence(self, process: int, last: int) -> None:
        # One at a time: what is sent meanwhile waits for the next
        self._proc.ask(process, Fence(), lambda answer: self._passed(process, last, answer))

    # the inbox thread

    def on_fence(self, _: Fence, message: Message) -> None:
        """Say so."""
        self._proc.answer(message, Done())

    def _passed(self, process: int, last: int, answer: Done | Refused) -> None:
        with self._lock:
            waiting = self._unproven.pop(process)
            if isinstance(answer, Done):
                waiting = collections.deque((n for n in waiting if n.number > last), KEPT)
                if waiting:
                    self._unproven[process] = waiting
        if isinstance(answer, Refused):
            for note in waiting:
                self._tell(note.sender, note.dest, note.what, answer.error)
        elif waiting:
            self._raise_fence(process, waiting[-1].number)

    def on_undelivered(self, message: Undelivered, _: Message) -> None:
        """Bring back what an actor of this process has sent."""
        self._tell(message.sender, message.dest, message.what, message.why)

    def _tell(self, port: int, dest: str, what: str, why: str) -> None:
        sender = self._senders.get(port)
        if sender is not None:
            address = sender.instance.actor_id
            sender.returned(UndeliverableMessageEnvelope(address, dest, what, why))
