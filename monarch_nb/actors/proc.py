"""`Proc`: this process as a member of the mesh: its ports, its peers, its parcels.

Rules: `deliver` runs in the inbox thread and must return at once; a port is a number and a callable; whoever waits for a peer is
registered before it sends and looked at when the peer dies, so nobody waits for the dead. What messages
mean is decided by the modules that register ports and verbs, not here.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.config import Config
from monarch_nb.core import frames, pickling
from monarch_nb.core.frames import CALL, CONTROL, CONTROL_PORT, DETACHED, HEADER, SHARED, Message
from monarch_nb.data.shared import Arena, Handle, attach
from monarch_nb.errors import LimitError
from monarch_nb.net.links import DETACH_BYTES, Links, Outbox

Handler = Callable[[Message], None]
Verb = Callable[[dict[str, Any], Message], None]
_LENT: Final = struct.Struct("<B")
_HANDLE_BYTES: Final = len(Handle(0, 0, 0, 0, 0).pack())


@dataclass(frozen=True)
class Exit:
    """How a process ended, as its agent saw it."""

    process: int
    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    tail: str = ""
    oom: bool = False
    unreachable_s: float | None = None

    @staticmethod
    def from_body(body: dict[str, Any]) -> Exit:
        """From the agent's `exited`."""
        return Exit(
            body["proc"],
            body.get("code"),
            body.get("signal"),
            body.get("reason"),
            body.get("tail") or "",
            bool(body.get("oom")),
            body.get("unreachable_s"),
        )

    def plainly(self) -> str:
        """The same for people who run cells: "exited with code 3"."""
        if self.oom:
            return "was killed because the memory ran out"
        if self.signal is not None:
            return f"was killed by signal {self.signal} ({_signal_name(self.signal)})"
        if self.unreachable_s is not None:
            return f"has not been heard for {self.unreachable_s:.1f} s"
        if self.code is not None:
            return f"exited with code {self.code}"
        return f"is gone: {self.reason or 'unknown reason'}"

    def describe(self) -> str:
        """One clause: "the process this actor was running on exited with non-zero code 3"."""
        if self.oom:
            return "the process this actor was running on was killed: out of memory (Killed(sig=9))"
        if self.signal is not None:
            return f"the process this actor was running on failed: Killed(sig={self.signal}, {_signal_name(self.signal)})"
        if self.unreachable_s is not None:
            why = f": {self.reason}" if self.reason else ""
            return (
                "the process this actor was running on was not heard for "
                f"{self.unreachable_s:.1f} s{why}"
            )
        if self.code is not None:
            kind = "non-zero code" if self.code else "code"
            return f"the process this actor was running on exited with {kind} {self.code}"
        return f"the process this actor was running on is gone: {self.reason or 'unknown reason'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Parcel:
    """A value encoded once, ready to go to any number of processes."""

    __slots__ = ("buffers", "flags", "payload")

    def __init__(self, payload: bytes, buffers: Sequence[Any] = (), flags: int = 0) -> None:
        self.payload = payload
        self.buffers = buffers
        self.flags = flags


class Proc:
    """The messaging of one process. There is one per process, see `runtime.current()`."""

    def __init__(
        self, *, process: int, agent: int, controller: int, run_dir: Path, config: Config
    ) -> None:
        self.id = process
        self.host = process >> frames.HOST_SHIFT
        self.agent = agent
        self.controller = controller
        self.config = config
        self.pid = os.getpid()
        self.dead: dict[int, Exit] = {}
        self.verbs: dict[str, Verb] = {"release": self._on_release}
        self.ports: dict[int, Handler] = {CONTROL_PORT: self._on_control}
        self.unknown: Handler = self.discard
        self.closed = False
        self._numbers = itertools.count(frames.FIRST_PORT)
        self._boxes: dict[int, Outbox] = {}
        self._watched = {process, agent, controller}
        self._arena: Arena | None = None
        self._arena_lock = threading.Lock()
        self._releases: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._releaser: threading.Thread | None = None
        self.links = Links(run_dir, process, self.deliver)

    # ports

    def new_port(self) -> int:
        """A number for a reply port, never used twice in this process."""
        return next(self._numbers)

    def deliver(self, message: Message) -> None:
        """Hand a message to the port it is for."""
        handler = self.ports.get(message.port)
        if handler is None:
            self.unknown(message)
        else:
            handler(message)

    # sending

    def send(
        self,
        process: int,
        kind: int,
        port: int,
        parcel: Parcel,
        *,
        reply: int = 0,
        rank: int = 0,
        tag: int = 0,
    ) -> None:
        """Send a parcel to a port of a process. A process known to be dead gets nothing."""
        if parcel.flags or parcel.buffers:
            self._send_large(process, kind, port, parcel, reply, rank, tag)
            return
        header = HEADER.pack(kind, 0, 0, rank, tag, port, self.id, reply)
        if process == self.id:
            self.deliver(Message(HEADER.unpack(header), parcel.payload))
            return
        box = self._boxes.get(process) or self._open(process)
        if box is not None:
            box.send(header + parcel.payload)

    def send_for(
        self, source: int, process: int, port: int, parcel: Parcel, reply: int, rank: int, tag: int
    ) -> None:
        """Send a call in the name of another process, which gets the answer. Nothing may be lent."""
        assert not parcel.flags & SHARED
        self._send_large(process, CALL, port, parcel, reply, rank, tag, source)

    def _send_large(
        self,
        process: int,
        kind: int,
        port: int,
        parcel: Parcel,
        reply: int,
        rank: int,
        tag: int,
        source: int | None = None,
    ) -> None:
        buffers = list(parcel.buffers)
        if parcel.flags & DETACHED:
            buffers.append(parcel.payload)
        origin = self.id if source is None else source
        header = HEADER.pack(kind, parcel.flags, len(buffers), rank, tag, port, origin, reply)
        if process == self.id:
            self.deliver(frames.build(HEADER.unpack(header), parcel.payload, buffers))
            return
        box = self._boxes.get(process) or self._open(process)
        if box is None:
            return
        if parcel.flags & DETACHED:
            box.send_frames([header, *buffers])
        else:
            box.send_frames([header + parcel.payload, *buffers])

    def control(
        self,
        process: int,
        verb: str,
        body: dict[str, Any] | None = None,
        *,
        parcel: Parcel | None = None,
        reply: int = 0,
        rank: int = 0,
    ) -> None:
        """Send a control message; `parcel` is user data that the receiver's inbox thread leaves alone."""
        text = json.dumps({"verb": verb, **(body or {})}).encode()
        buffers: list[Any] = []
        flags = 0
        if parcel is not None:
            buffers = [*parcel.buffers, parcel.payload]
            flags = parcel.flags & SHARED
        self.send(
            process, CONTROL, CONTROL_PORT, Parcel(text, buffers, flags), reply=reply, rank=rank
        )

    def answer(self, message: Message, body: dict[str, Any]) -> None:
        """Answer a control message, if an answer was asked for."""
        if message.reply:
            self.send(message.source, CONTROL, message.reply, Parcel(json.dumps(body).encode()))

    def ask(
        self,
        process: int,
        verb: str,
        body: dict[str, Any],
        then: Callable[[dict[str, Any]], None],
        *,
        parcel: Parcel | None = None,
    ) -> None:
        """Send a control message and call `then(answer)` in the inbox thread.

        The death of the peer is an answer too: `{"error": ...}`.
        """
        pending = _Asked(self, process, then)
        self.ports[pending.port] = pending.deliver
        if (gone := self.dead.get(process)) is not None:
            pending.lost(gone)
        else:
            self.control(process, verb, body, parcel=parcel, reply=pending.port)

    def _open(self, process: int) -> Outbox | None:
        if process in self.dead or self.closed:
            return None
        if process not in self._watched and process >> frames.HOST_SHIFT == self.host:
            self._watched.add(process)
            self.control(self.agent, "watch", {"procs": [process]})
        box = self._boxes[process] = self.links.outbox(process)
        return box

    def watching(self, processes: Iterable[int]) -> None:
        """The agent tells of these without being asked (we own them)."""
        self._watched.update(processes)

    # values

    def encode(self, value: Any, receivers: Sequence[int]) -> Parcel:
        """Pickle a value for some processes; large buffers go to shared memory once for all of them."""
        buffers: list[Any] = []
        payload = pickling.dumps(value, buffers)
        if not buffers and len(payload) < DETACH_BYTES:
            return Parcel(payload)
        raws = [buffer.raw() for buffer in buffers]
        self._check_size(payload, raws)
        flags = DETACHED if len(payload) >= DETACH_BYTES else 0
        if any(raw.nbytes >= self.config.shared_threshold_bytes for raw in raws):
            shared = self._share(raws, receivers)
            if shared is not None:
                return Parcel(payload, shared, flags | SHARED)
        return Parcel(payload, raws, flags)

    def encode_bytes(self, payload: bytes) -> Parcel:
        """A parcel of something that is pickled already."""
        return Parcel(payload, (), DETACHED if len(payload) >= DETACH_BYTES else 0)

    def decode(self, message: Message) -> Any:
        """The value of a message; unpickles, so never called in the inbox thread."""
        return pickling.loads(message.payload, self._open_buffers(message))

    def decode_user_data(self, message: Message) -> Any:
        """The parcel that came with a control message."""
        *buffers, payload = message.buffers
        carried = Message((0, message.flags, 0, 0, 0, 0, message.source, 0), payload, buffers)
        return self.decode(carried)

    def discard(self, message: Message) -> None:
        """A message for nobody: give back the memory it borrows."""
        if message.flags & SHARED:
            for handle in _read_table(message.buffers[0]):
                if handle is not None:
                    self._release(message.source, handle.segment)

    def _check_size(self, payload: bytes, raws: Sequence[memoryview]) -> None:
        size = len(payload) + sum(raw.nbytes for raw in raws)
        limit = self.config.message_limit_bytes
        if size > limit:
            raise LimitError(
                f"a message of {size} bytes is over the limit of {limit}; send it in parts, or raise "
                "MONARCH_NB_MESSAGE_LIMIT_BYTES",
                limit=limit,
                size=size,
            )

    def _share(self, raws: Sequence[memoryview], receivers: Sequence[int]) -> list[Any] | None:
        """Table and inline buffers, or None when the value must travel inline."""
        holders = [each for each in receivers if each not in self.dead]
        if not holders or any(each >> frames.HOST_SHIFT != self.host for each in holders):
            return None
        threshold = self.config.shared_threshold_bytes
        large = [raw for raw in raws if raw.nbytes >= threshold]
        try:
            handles = iter(self.arena.lend(large, holders))
        except LimitError:
            if sum(raw.nbytes for raw in large) <= self.config.inline_limit_bytes:
                return None
            raise
        placed = [(next(handles), raw) if raw.nbytes >= threshold else (None, raw) for raw in raws]
        return [_write_table(placed), *(raw for handle, raw in placed if handle is None)]

    def _open_buffers(self, message: Message) -> Sequence[Any]:
        if not message.flags & SHARED:
            return message.buffers
        inline = iter(message.buffers[1:])
        opened: list[Any] = []
        for handle in _read_table(message.buffers[0]):
            opened.append(next(inline) if handle is None else self._attach(message.source, handle))
        return opened

    def _attach(self, owner: int, handle: Handle) -> memoryview:
        self._start_releaser()
        item = (owner, handle.segment)
        put = self._releases.put  # re-entrant: may run inside any allocation, see SimpleQueue
        return attach(handle, lambda: put(item))

    @property
    def arena(self) -> Arena:
        """The shared memory this process lends, made at first use."""
        if self._arena is None:
            with self._arena_lock:
                if self._arena is None:
                    self._arena = Arena(self.config.shared_bytes)
        return self._arena

    def _on_release(self, body: dict[str, Any], message: Message) -> None:
        if self._arena is not None:
            self._arena.release(body["segment"], message.source)

    def _release(self, owner: int, segment: int) -> None:
        if owner == self.id:
            self.arena.release(segment, owner)
        else:
            self.control(owner, "release", {"segment": segment})

    def _start_releaser(self) -> None:
        # finalizers run anywhere, even where a lock of an outbox is held; so they only queue
        with self._arena_lock:
            if self._releaser is None:
                self._releaser = threading.Thread(
                    target=self._give_back, name="monarch-releases", daemon=True
                )
                self._releaser.start()

    def _give_back(self) -> None:
        while (item := self._releases.get()) is not None:
            if not self.closed:
                self._release(*item)

    # peers

    def _on_control(self, message: Message) -> None:
        body = json.loads(bytes(message.payload))
        verb = self.verbs.get(body["verb"])
        if verb is not None:
            verb(body, message)
        else:
            self.answer(message, {"error": f"unknown verb {body['verb']!r}"})

    def bury(self, ended: Exit) -> list[Any]:
        """A process is gone: forget its outbox and leases, and fail all who wait for it.

        Returns those who waited and were told.
        """
        self.dead[ended.process] = ended
        self._boxes.pop(ended.process, None)
        self.links.drop(ended.process)
        if self._arena is not None:
            self._arena.forget(ended.process)
        told = []
        for handler in list(self.ports.values()):
            waiter = getattr(handler, "__self__", None)
            if isinstance(waiter, Waiter) and waiter.waits_for(ended.process):
                waiter.lost(ended)
                told.append(waiter)
        return told

    def waiters(self) -> list[Waiter]:
        """Everything of this process that waits for an answer."""
        owners = [getattr(handler, "__self__", None) for handler in list(self.ports.values())]
        return [each for each in owners if isinstance(each, Waiter)]

    def close(self, linger_s: float = 0.5) -> None:
        """End the messaging of this process."""
        if self.closed:
            return
        self.closed = True
        self.links.close(linger_s)
        self._releases.put(None)
        if self._releaser is not None and self._releaser is not threading.current_thread():
            self._releaser.join(1)
        if self._arena is not None:
            self._arena.close()


class Waiter:
    """Something registered at a port that waits for the answers of peers."""

    __slots__ = ()

    def waits_for(self, process: int) -> bool:
        """Whether an answer of this process is still missing."""
        raise NotImplementedError

    def lost(self, ended: Exit) -> None:
        """The process is gone: end the wait."""
        raise NotImplementedError

    def abandon(self, ended: Exit) -> None:
        """This process leaves the mesh: end the wait for everybody."""
        raise NotImplementedError


class _Asked(Waiter):
    """One control message that wants an answer."""

    __slots__ = ("_proc", "_process", "_then", "port")

    def __init__(self, proc: Proc, process: int, then: Callable[[dict[str, Any]], None]) -> None:
        self._proc = proc
        self._process = process
        self._then = then
        self.port = proc.new_port()

    def deliver(self, message: Message) -> None:
        if self._proc.ports.pop(self.port, None) is not None:
            self._then(json.loads(bytes(message.payload)))

    def waits_for(self, process: int) -> bool:
        return process == self._process

    def abandon(self, ended: Exit) -> None:
        self.lost(ended)

    def lost(self, ended: Exit) -> None:
        if self._proc.ports.pop(self.port, None) is not None:
            self._then({"error": ended.describe()})


def _write_table(placed: Sequence[tuple[Handle | None, Any]]) -> bytes:
    blank = bytes(_HANDLE_BYTES)
    return b"".join(
        _LENT.pack(handle is not None) + (blank if handle is None else handle.pack())
        for handle, _ in placed
    )


def _read_table(table: Any) -> list[Handle | None]:
    step = _LENT.size + _HANDLE_BYTES
    entries = [bytes(table[at : at + step]) for at in range(0, len(table), step)]
    return [Handle.unpack(each[1:]) if each[0] else None for each in entries]


def new_process_ids(host: int, count: int) -> list[int]:
    """Ids for processes to come on a host: consecutive, from a random start, so never used twice."""
    start = random.SystemRandom().getrandbits(40) << 8
    return [
        host << frames.HOST_SHIFT | (start + i) & ((1 << frames.HOST_SHIFT) - 1)
        for i in range(count)
    ]


def new_actor_port() -> int:
    """A port for an actor, the same on all ranks of its mesh."""
    return frames.ACTOR_BIT | random.SystemRandom().getrandbits(62)
