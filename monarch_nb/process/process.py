"""`Proc`: this process as a member of the mesh: its ports, its peers, its payloads.

Rules: `deliver` runs in the inbox thread and must return at once; a port is a number and a
callable; whoever waits for a peer is registered before it sends and looked at when the peer dies,
so nobody waits for the dead. What messages mean is decided by the modules that register ports and
verbs, not here.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from monarch_nb.config import Config
from monarch_nb.core import reply_folding
from monarch_nb.core.casting import MOST_RECEIVERS, Cast, Run, runs_of
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import (
    CALL,
    CONTROL,
    CONTROL_PORT,
    DETACHED,
    FOLD_PORT,
    HEADER,
    LENT,
    SHARED,
    Message,
)
from monarch_nb.core.wire.messages import agents, codec
from monarch_nb.core.wire.messages.actors import Release
from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.links import Links
from monarch_nb.net.outbox import Outbox
from monarch_nb.process.exit import Exit
from monarch_nb.process.payloads import Payload, Payloads

_MANY: Final = 2  # on other hosts: fewer are not worth a cast
ANY_PORT: Final = -1
"""Whoever is registered here gets what is for a port that nobody has. No message can name it."""
Handler = Callable[[Message], None]
A = TypeVar("A")
M = TypeVar("M")


class Serve(NamedTuple):
    """Which control messages are handled by what: `handle(message, frame)`. Made by `serve`."""

    kind: type
    handle: Callable[[Any, Message], None]


def serve(kind: type[M], handle: Callable[[M, Message], None]) -> Serve:
    """Have control messages of this type handled, in the inbox thread."""
    return Serve(kind, handle)


class Receivers(NamedTuple):
    """Processes that get one message, as they are sent it: `each` with its rank by itself, `runs`
    by a cast; `far` are the ones in those."""

    each: Sequence[tuple[int, int]]
    runs: Sequence[Run]
    far: frozenset[int] = frozenset()


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
        self.marking = threading.RLock()
        """Held while losses are noted, with who waits for them; who holds it sees all of what was
        lost together."""
        self._telling = threading.RLock()
        self._cut_off: set[int] = set()
        self._handlers: dict[str, Serve] = {}
        self.payloads = Payloads(self.host, config, self.dead, self._release)
        self.encode = self.payloads.encode
        self.encode_bytes = self.payloads.encode_bytes
        self.decode = self.payloads.decode
        self.decode_user_data = self.payloads.decode_user_data
        self.discard = self.payloads.discard
        self.ports: dict[int, Handler] = {
            CONTROL_PORT: self._on_control,
            FOLD_PORT: self._on_fold,
            ANY_PORT: self.discard,
        }
        self.waiting: dict[int, Waiter] = {}
        """By the ports at which they wait for answers; no port is in both."""
        self.on_call_failed: list[Callable[[Any, int, Sequence[int]], None]] = []
        """Each is called in the inbox thread with the state of a mesh, the port at which a call or
        a cell waits, and ranks on which it has failed."""
        self.on_calls_cancelled: list[Callable[[Any], None]] = []
        """Each is called with the state of a mesh that calls were taken back from; any thread."""
        self.closed = False
        self._numbers = itertools.count(frames.FIRST_PORT)
        self._boxes: dict[int, Outbox] = {}
        gateway = self.host << frames.HOST_SHIFT | frames.GATEWAY
        self._watched = {process, agent, controller, gateway}
        self.links = Links(run_dir, process, self.deliver)

    def reconfigure(self, config: Config) -> None:
        """Use these settings from now on, and give them to what is spawned."""
        self.config = config
        self.payloads.reconfigure(config)

    def replace_agent(self, agent: int) -> None:
        """Ask another agent from now on: the one of this host has ended."""
        self.agent = agent

    def follow(self, controller: int) -> None:
        """Have another controller from now on: the one before has gone, or drives others."""
        self.controller = controller
        self._watched.add(controller)
        away = (self.host, controller >> frames.HOST_SHIFT)
        there = [each for each in self._watched if each >> frames.HOST_SHIFT not in away]
        if there := [each for each in there if each not in self.dead]:
            self.control(controller, agents.Watch(there))

    def start(self, handlers: Iterable[Serve]) -> None:
        """Begin to receive. Raises `ValueError` where a message has two handlers."""
        for each in (serve(Release, self._on_release), *handlers):
            if self._handlers.setdefault(codec.verb_of(each.kind), each) is not each:
                raise ValueError(f"{each.kind.__name__} has two handlers")
        self.links.start()

    # ports

    def new_port(self) -> int:
        return next(self._numbers)

    def deliver(self, message: Message) -> None:
        if self._cut_off and message.source in self._cut_off:
            self.discard(message)  # it was given up: what it says now is too late
            return
        waiter = self.waiting.get(message.port)
        if waiter is not None:
            waiter.deliver(message)
            return
        if message.flags & SHARED:
            self.payloads.check(message)  # here noise is counted; later it would end a thread
        handler = self.ports.get(message.port)
        if handler is None:
            self.ports[ANY_PORT](message)
        else:
            handler(message)

    # sending

    def send(
        self,
        process: int,
        kind: int,
        port: int,
        payload: Payload,
        *,
        reply: int = 0,
        rank: int = 0,
        tag: int = 0,
    ) -> None:
        """Send a payload to a port of a process. A process known to be dead gets nothing."""
        if payload.flags or payload.buffers:
            self._send_large(process, kind, port, payload, reply, rank, tag)
            return
        header = HEADER.pack(kind, 0, 0, rank, tag, port, self.id, reply)
        if process == self.id:
            self.deliver(Message(HEADER.unpack(header), payload.payload))
            return
        box = self._boxes.get(process) or self._open(process)
        if box is not None:
            box.send(header + payload.payload)

    def send_for(
        self,
        source: int,
        process: int,
        port: int,
        payload: Payload,
        reply: int,
        rank: int,
        tag: int,
    ) -> None:
        """Send a call in the name of another process, which gets the answer. It lends nothing."""
        assert not payload.flags & SHARED
        self._send_large(process, CALL, port, payload, reply, rank, tag, source)

    def receivers(self, members: Iterable[tuple[int, int]]) -> Receivers:
        """Sort processes, each with its rank, by how they are reached."""
        near: list[tuple[int, int]] = []
        far: list[tuple[int, int]] = []
        for member in members:
            (near if member[0] >> frames.HOST_SHIFT == self.host else far).append(member)
        if len(far) < _MANY:
            return Receivers(near + far, ())
        return Receivers(near, runs_of(far), frozenset(process for process, _ in far))

    def cast(
        self,
        receivers: Receivers,
        kind: int,
        port: int,
        payload: Payload,
        *,
        reply: int = 0,
        tag: int = 0,
    ) -> None:
        """Send a payload to many processes, each of which gets its rank with it. It crosses the
        network once for each host."""
        send = self.send
        for process, rank in receivers.each:
            send(process, kind, port, payload, reply=reply, rank=rank, tag=tag)
        if receivers.runs:
            self._cast_far(receivers, kind, port, payload, reply, tag)

    def _cast_far(
        self, receivers: Receivers, kind: int, port: int, payload: Payload, reply: int, tag: int
    ) -> None:
        runs, far = receivers.runs, receivers.far
        if not far.isdisjoint(self.dead):
            members = [member for run in runs for member in run.members()]
            runs = runs_of(member for member in members if member[0] not in self.dead)
            far = far - self.dead.keys()
        if not far or self.closed:
            return
        if self.id != self.controller:  # which is told of all
            self.watch_all(far)
        bodies = _bodies(payload, kind, 0, tag, port, self.id, reply)
        self.links.cast(Cast(runs, bodies))

    def control_all(
        self,
        processes: Iterable[int],
        message: object,
        *,
        payload: Payload | None = None,
        reply: int = 0,
        tag: int = 0,
    ) -> None:
        """Send a control message to many processes, each of which gets its place among them as its
        rank."""
        members = [(process, rank) for rank, process in enumerate(processes)]
        content = _control(message, payload)
        receivers = self.receivers(members)
        self.cast(receivers, CONTROL, CONTROL_PORT, content, reply=reply, tag=tag)

    def _on_fold(self, message: Message) -> None:
        port, groups = reply_folding.unfold(message.payload)
        for kind, tag, runs, payload in groups:
            same = Message((kind, 0, 0, 0, tag, port, message.source, 0), payload)
            waiter = None if self._cut_off else self.waiting.get(port)
            rest = runs if waiter is None else waiter.deliver_equal(same, runs)
            for run in rest:
                for process, rank in run.members():
                    self.deliver(Message((kind, 0, 0, rank, tag, port, process, 0), payload))

    def _send_large(
        self,
        process: int,
        kind: int,
        port: int,
        payload: Payload,
        reply: int,
        rank: int,
        tag: int,
        source: int | None = None,
    ) -> None:
        origin = self.id if source is None else source
        bodies = _bodies(payload, kind, rank, tag, port, origin, reply)
        if process == self.id:
            frame, *buffers = bodies
            own = [each if isinstance(each, bytes) else bytearray(each) for each in buffers]
            rest = memoryview(frame)[HEADER.size :]
            self.deliver(frames.build(HEADER.unpack_from(frame), rest, own))
            return
        box = self._boxes.get(process) or self._open(process)
        if box is not None:
            box.send_frames(bodies)

    def control(
        self,
        process: int,
        message: object,
        *,
        payload: Payload | None = None,
        reply: int = 0,
        rank: int = 0,
        tag: int = 0,
    ) -> None:
        """Send a control message; `payload` is user data, which no inbox thread opens."""
        content = _control(message, payload)
        self.send(process, CONTROL, CONTROL_PORT, content, reply=reply, rank=rank, tag=tag)

    def answer(self, message: Message, answer: object, payload: Payload | None = None) -> None:
        if message.reply:
            content = _beside(codec.encode_answer(answer), payload)
            self.send(message.source, CONTROL, message.reply, content, rank=message.rank)

    def ask(
        self,
        process: int,
        request: Request[A],
        then: Callable[[A | Refused], None],
        *,
        payload: Payload | None = None,
    ) -> None:
        """Send a request and call `then(answer)` in the inbox thread.

        The death of the peer, and an answer that makes no sense, are refusals.
        """
        pending = _Asked(self, process, request.answer(), then)
        self.waiting[pending.port] = pending
        if (gone := self.dead.get(process)) is not None:
            pending.lost(gone)
        else:
            self.control(process, request, payload=payload, reply=pending.port)

    def _open(self, process: int) -> Outbox | None:
        if process in self.dead or self.closed:
            return None
        self.watch(process)
        box = self._boxes[process] = self.links.outbox(process)
        return box

    def watch(self, process: int) -> None:
        """Be told when a process ends: by the agent of this host, of others by the controller,
        which hears of all."""
        self.watch_all([process])

    def watch_all(self, processes: Iterable[int]) -> None:
        """Do so for many, with a message to each that tells."""
        new = [each for each in processes if each not in self._watched]
        here = [each for each in new if each >> frames.HOST_SHIFT == self.host]
        there = [each for each in new if each >> frames.HOST_SHIFT != self.host]
        if self.id == self.controller:
            there = []
        for watcher, some in ((self.agent, here), (self.controller, there)):
            if some:
                self._watched.update(some)
                self.control(watcher, agents.Watch(some))

    def watching(self, processes: Iterable[int]) -> None:
        self._watched.update(processes)

    # peers

    def _on_control(self, message: Message) -> None:
        body = codec.json_of(message.payload)
        name = body.get("verb")
        found = self._handlers.get(name) if isinstance(name, str) else None
        if found is None:
            self.answer(message, Refused(f"unknown verb {name!r:.80}"))
            return
        try:
            content: object = codec.decode(found.kind, body)
        except RemoteProtocolError as error:
            self.answer(message, Refused(str(error)))
            raise
        found.handle(content, message)

    def call_failed(self, state: object, port: int, ranks: Sequence[int]) -> None:
        for listener in self.on_call_failed:
            listener(state, port, ranks)

    def calls_cancelled(self, state: object) -> None:
        for listener in self.on_calls_cancelled:
            listener(state)

    def mark_dead(self, ended: Exit) -> None:
        """Forget the outbox and leases of a process that is gone. `marking` is held; the
        `waiters_of` it have to be told."""
        self.dead[ended.process] = ended
        if ended.unreachable_s is not None:
            self.cut_off(ended.process)
        self._boxes.pop(ended.process, None)
        self.links.drop(ended.process)
        self.payloads.forget(ended.process)

    def cut_off(self, process: int) -> None:
        """Take nothing from a process any more: what it says now is too late."""
        self._cut_off.add(process)

    def waiters_of(self, ended: Collection[Exit]) -> list[tuple[Waiter, Exit]]:
        """Return who waits for processes that are gone, each with what it has to be told."""
        return [
            (waiter, each)
            for waiter in self.waiters()
            for each in ended
            if waiter.waits_for(each.process)
        ]

    def tell(self, waits: Iterable[tuple[Waiter, Exit]]) -> None:
        """Fail those who wait, one at a time, whichever threads do: one that begins to wait for who
        is just dying is told by whoever has noted the loss, and by `look_for_dead`."""
        with self._telling:
            for waiter, ended in waits:
                waiter.lost(ended)

    def look_for_dead(self, waiter: Waiter) -> None:
        """Fail one that has just begun to wait, if it waits for somebody who is gone. Who notes a
        loss later finds it waiting: that nobody has waited is then not said."""
        if not self.dead:
            return
        with self.marking:
            awaited = dict.fromkeys(waiter.awaited())  # several actors may live in one process
            gone = [self.dead[each] for each in awaited if each in self.dead]
        if gone:
            self.tell((waiter, each) for each in gone)

    def waiters(self) -> list[Waiter]:
        return list(self.waiting.values())

    def close(self, linger_s: float = 0.5) -> None:
        if self.closed:
            return
        self.closed = True
        self.links.close(linger_s)
        self.payloads.close()

    def _on_release(self, release: Release, message: Message) -> None:
        if release.holders is None:
            self.payloads.taken_back(release.segment, message.source)
        elif sum(count for _, count in release.holders) <= MOST_RECEIVERS:
            for first, count in release.holders:
                for holder in range(first, first + count):
                    self.payloads.taken_back(release.segment, holder)

    def _release(self, owner: int, segment: int) -> None:
        if owner == self.id:
            self.payloads.taken_back(segment, owner)
        elif not self.closed:
            self.control(owner, Release(segment))


class Wait(NamedTuple):
    """Answers that are missing, for people: `ranks` of the mesh, which has `size`.

    `what`: a call as "trainer.step", or "start" or "cell". `tag` is the notebook cell that waits;
    None: whichever runs.
    """

    what: str
    mesh: str
    ranks: tuple[int, ...]
    size: int
    tag: int | None


class Waiter:
    """Something that waits for the answers of peers; `deliver` gets them, in the inbox thread."""

    __slots__ = ()

    def deliver(self, message: Message) -> None:
        raise NotImplementedError

    def deliver_equal(self, message: Message, runs: Sequence[Run]) -> Sequence[Run]:  # noqa: ARG002
        """Take the same answer of all of these; return those of whom each answer has to be
        delivered by itself."""
        return runs

    def wait_for_people(self) -> Wait | None:
        return None

    def awaited(self) -> Collection[int]:
        """Return the processes that have not answered yet."""
        raise NotImplementedError

    def waits_for(self, process: int) -> bool:
        return process in self.awaited()

    def lost(self, ended: Exit) -> None:
        raise NotImplementedError

    def abandon(self, ended: Exit) -> None:
        """End the wait for everybody: this process leaves the mesh."""
        raise NotImplementedError


class _Asked(Waiter):
    __slots__ = ("_kind", "_proc", "_process", "_then", "port")

    def __init__(
        self, proc: Proc, process: int, kind: type[A], then: Callable[[A | Refused], None]
    ) -> None:
        self._proc = proc
        self._process = process
        self._kind = kind
        self._then = then
        self.port = proc.new_port()

    def deliver(self, message: Message) -> None:
        if self._proc.waiting.pop(self.port, None) is not None:
            self._then(answer_of(self._kind, message))

    def awaited(self) -> Collection[int]:
        return (self._process,)

    def abandon(self, ended: Exit) -> None:
        self.lost(ended)

    def lost(self, ended: Exit) -> None:
        if self._proc.waiting.pop(self.port, None) is not None:
            self._then(Refused(ended.describe()))


def _bodies(
    payload: Payload, kind: int, rank: int, tag: int, port: int, source: int, reply: int
) -> list[Any]:
    # the frames of a message: header and payload, buffers
    buffers = list(payload.buffers)
    if payload.flags & DETACHED:
        buffers.append(payload.payload)
    header = HEADER.pack(kind, payload.flags, len(buffers), rank, tag, port, source, reply)
    first = header if payload.flags & DETACHED else header + payload.payload
    return [first, *buffers]


def _control(message: object, payload: Payload | None) -> Payload:
    return _beside(codec.encode(message), payload)


def _beside(text: bytes, payload: Payload | None) -> Payload:
    # user data in the buffers, where no inbox thread opens it
    if payload is None:
        return Payload(text)
    flags = payload.flags & (SHARED | LENT)
    return Payload(text, [*payload.buffers, payload.payload], flags)


def answer_of(kind: type[A], message: Message) -> A | Refused:
    """Return the answer that has come; one that makes no sense is a refusal."""
    try:
        return codec.decode_answer(kind, message.payload)
    except RemoteProtocolError as error:
        return Refused(str(error))


def new_process_ids(host: int, count: int) -> list[int]:
    """Make ids for processes of a host: consecutive, from a random start, so never used twice."""
    start = random.SystemRandom().getrandbits(39) << 8
    return [
        host << frames.HOST_SHIFT | (start + i) & (frames.SERVICE_BIT - 1) for i in range(count)
    ]


def agent_of(host: int) -> int:
    """Return the id of the agent of a host that has joined: it has one for good."""
    return wire.agent_id(host)


def new_agent_id(host: int) -> int:
    return new_process_ids(host, 1)[0] | frames.SERVICE_BIT


def new_actor_port() -> int:
    return frames.ACTOR_BIT | random.SystemRandom().getrandbits(62)
