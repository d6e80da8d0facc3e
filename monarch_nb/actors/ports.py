"""Ports: mailboxes with an address. `Channel.open()` makes one, a `Port` can be sent anywhere.

A receive claims a message when it is observed, in the order of observation; a dropped receive
claims none.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

from monarch_nb.actors import undeliverable
from monarch_nb.core.wire.frames import ERROR, REPLY, Message
from monarch_nb.process import context, current, remote_errors
from monarch_nb.process.futures.future import Future, LazyFuture
from monarch_nb.process.mailbox import Mailbox
from monarch_nb.process.process import ANY_PORT, Proc

if TYPE_CHECKING:
    from monarch_nb.process.payloads import Payload

R = TypeVar("R")

_ANYBODY: Final = (0, 0)  # receivers take what comes, from whoever it is


@final
class Port(Generic[R]):
    """The sending end: `send` a value or an exception to whoever holds the receiver. Picklable."""

    __slots__ = ("_once", "_port", "_process", "_rank", "_used")

    def __init__(self, process: int, port: int, rank: int = 0, *, once: bool = False) -> None:
        self._process = process
        self._port = port
        self._rank = rank
        self._once = once
        self._used = False

    def send(self, value: R) -> None:
        """Send a value. Raises `RuntimeError` at the second use of a once-port."""
        self._check_unused()
        proc = current.proc()
        self._put(REPLY, proc, proc.encode(value, (self._process,)))

    def exception(self, error: Exception) -> None:
        """Make the receiver raise `error`, as it is."""
        self._check_unused()
        proc = current.proc()
        self._put(ERROR, proc, proc.encode_bytes(remote_errors.pack(remote_errors.RAW, error)))

    def _put(self, kind: int, proc: Proc, payload: Payload) -> None:
        self._used = self._once
        if not self._port:
            return  # nobody waits: it came with a broadcast
        sender = context.current_sender()
        if sender is not None:
            payload = undeliverable.sealed(payload, sender, "port")
        proc.send(self._process, kind, self._port, payload, rank=self._rank)
        if sender is not None:
            dest = address_of_port(self._process, self._port)
            current.part(undeliverable.Returns).sent(sender, self._process, dest, "port")

    @property
    def rank(self) -> int:
        """The rank that this port answers for."""
        return self._rank

    def _claimed(self) -> tuple[int, int]:
        self._check_unused()
        self._used = self._once
        return self._process, self._port

    def _check_unused(self) -> None:
        if self._used:
            raise RuntimeError("OncePortRef already used")

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_port, (self._process, self._port, self._rank, self._once)

    def __repr__(self) -> str:
        return f"<Port {self._port:x} of process {self._process:016x}>"


def address_of_port(process: int, port: int) -> str:
    return f"port {port:x} of process {process:016x}"


def _restore_port(process: int, port: int, rank: int, once: bool) -> Port[Any]:
    return Port(process, port, rank, once=once)


class _Receive(LazyFuture[R]):
    __slots__ = ("_receiver",)
    _receiver: PortReceiver[R]

    @classmethod
    def by(cls, receiver: PortReceiver[R]) -> _Receive[R]:
        future = cast("_Receive[R]", cls.starting(receiver._claim))
        future._receiver = receiver
        return future

    def _decode(self, content: Any) -> R:
        return cast("R", self._receiver._decode(content))


class PortReceiver(Generic[R]):
    """The receiving end, made by `Channel.open`; not meant for subclasses.

    `recv()` gives a `Future` that claims a message when it is observed.
    """

    def __init__(self, proc: Proc, port: int, *, once: bool, ranked: bool = False) -> None:
        self._proc = proc
        self._box: Mailbox[Message] = Mailbox()
        self._once = once
        self._received = False
        self._is_ranked = ranked
        self._port = port
        box = weakref.ref(self._box)
        proc.ports[port] = lambda message: _deliver(box, proc, message)
        weakref.finalize(self, proc.ports.pop, port, None)

    def recv(self) -> LazyFuture[R]:
        """Return the next message. Raises `ValueError` for the second receive of a once-port."""
        if self._once and self._received:
            raise ValueError("this port receives once and has been received from already")
        self._received = True
        return _Receive.by(self)

    def _claim(self, future: Future[R]) -> None:
        self._box.want(_ANYBODY, future._arrive)

    def ranked(self) -> RankedPortReceiver[R]:
        """Return the same mailbox, each message with the rank it came from."""
        view: RankedPortReceiver[R] = object.__new__(RankedPortReceiver)
        view.__dict__.update(self.__dict__)
        view._is_ranked = True
        view._source = self
        return view

    def _decode(self, message: Message) -> Any:
        if message.kind == ERROR:
            raise remote_errors.unpack(message.payload, what="port", rank=message.rank, size=1)
        value = self._proc.decode(message)
        return (message.rank, value) if self._is_ranked else value


@final
class RankedPortReceiver(PortReceiver[R]):
    """A receiver whose messages come as `(rank, value)`."""

    _source: PortReceiver[R] | None = None


def _deliver(box: weakref.ref[Mailbox[Message]], proc: Proc, message: Message) -> None:
    found = box()
    if found is None:
        proc.ports[ANY_PORT](message)
    else:
        found.put(_ANYBODY, message)


@final
class Channel(Generic[R]):
    """Makes pairs of ports; `Channel[int].open()` says to type checkers what they carry.

    Example:
        >>> port, receiver = Channel.open()     # doctest: +SKIP
        >>> port.send(1); receiver.recv().get() # doctest: +SKIP
        1
    """

    @staticmethod
    # Monarch's
    def open(once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """Make a mailbox in this process; `once` allows one message."""
        proc = current.proc()
        number = proc.new_port()
        return Port(proc.id, number, once=once), PortReceiver(proc, number, once=once)

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """Open one whose messages come with the sender's rank."""
        proc = current.proc()
        number = proc.new_port()
        receiver: RankedPortReceiver[R] = RankedPortReceiver(proc, number, once=once, ranked=True)
        return Port(proc.id, number, once=once), receiver
