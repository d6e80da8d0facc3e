"""The controller's side of a stream: commands are collected into batches and sent to ranks.

Rules: nobody waits for a rank here, unless ranks are so far behind that what waits would not fit
into memory. A batch leaves when it is full, when it is a millisecond old, and before anything is
fetched. What the controller lets go of is told to the ranks with the next batch; a finalizer only
queues. An interrupt comes up where Python calls something: each command is added in one step, and
a batch that has begun to leave leaves for all ranks.
"""

from __future__ import annotations

import array
import collections
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch

from monarch_nb.actors.gate import Ticket, note
from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Shape
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import ACTOR_BIT, CALL, Message
from monarch_nb.errors import MeshError
from monarch_nb.meshes.actor_mesh import ActorMesh
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process import context, current
from monarch_nb.process.futures.calls import GatherCall, Target
from monarch_nb.process.futures.future import make
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Wait
from monarch_nb.tensor.commands.call_sites import call_sites
from monarch_nb.tensor.commands.metadata import TensorMeta
from monarch_nb.tensor.commands.templates import FREE, MAIN, OPEN, SITE, Definition
from monarch_nb.tensor.ranks.tensor_worker import TensorWorker

FULL: Final = 256
"""Commands of a batch, at most."""
AGE_S: Final = 0.001
AHEAD: Final = 2
"""Batches that ranks have not run yet, so that they need no more in haste."""
PERIOD_S: Final = 0.001
QUIET: Final = 20
"""So many periods without anything to send, and the flusher sleeps."""
BEHIND: Final = 256
"""Batches that ranks may be behind before the controller waits for them."""


RankPart = Callable[[torch.Tensor, str, Shape, tuple[int | None, ...]], torch.Tensor]
"""Runs on a rank: its part of a tensor, on a device, of a mesh of that shape; for each axis of the
mesh, which dimension of the tensor is cut along it."""


C = TypeVar("C", bound=GatherCall)


class Flusher:
    """A thread that sends the batches to which nobody adds any more.

    It is woken by a queue that finalizers may use, sleeps while nothing is open, and ends with the
    runtime of its process.
    """

    def __init__(self) -> None:
        self._woken: queue.SimpleQueue[Engine | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awake: dict[int, Engine] = {}

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="monarch-tensors", daemon=True)
            self._thread.start()

    def look_after(self, engine: Engine) -> None:
        """Send its batches when they are due. Any thread, also from a finalizer."""
        self._woken.put(engine)

    def close(self) -> None:
        if (thread := self._thread) is not None:
            self._woken.put(None)
            thread.join(1)
            self._thread = None

    def _serve(self) -> None:
        while (found := self._woken.get()) is not None:
            self._awake[id(found)] = found
            while self._awake:
                if not self._turn():
                    return

    def _turn(self) -> bool:
        # Until all is quiet. False: this is the end.
        quiet = 0
        while quiet < QUIET:
            time.sleep(PERIOD_S)
            while not self._woken.empty():
                if (found := self._woken.get()) is None:
                    return False
                self._awake[id(found)] = found
            idle = True
            for each in self._awake.values():
                idle = each.is_idle() and idle
                each.flush_if_due()
            quiet = quiet + 1 if idle else 0
        for key, each in list(self._awake.items()):
            if each.falls_asleep():
                del self._awake[key]
        return True


flusher: Final = Flusher()


class Home:
    """Where tensors live: the ranks of a mesh or of a slice of it, and a stream there.

    `is_global`: what ranks hold are parts of one tensor, of torch's `DTensor`, which `part` makes
    there. Equal ones are one object. It keeps no mesh alive: a `Ref` does.
    """

    def __init__(self, engine: Engine, shape: Shape, part: RankPart | None) -> None:
        self.engine = engine
        self.shape = shape
        self.part = part
        self.is_global = part is not None
        self.freed: collections.deque[int] = collections.deque()
        self.defined: set[int] = set()
        self._target: Target | None = None
        self._workers: ActorMesh[TensorWorker] = ActorMesh(engine.workers, shape, keeps_alive=False)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.shape.labels, self.shape.ndslice.sizes, strict=True))

    @property
    def ranks(self) -> list[int]:
        """In the mesh that was spawned."""
        return self.shape.ranks()

    def mesh(self) -> ProcMesh:
        return ProcMesh(self.engine.procs, self.shape)

    def target(self, method: str = "run") -> Target:
        """Return whom to send to. Raises `SupervisionError` when a rank of it is lost."""
        found = self._workers._target(method)
        if method == "run" and found is not self._target:
            self._target = found
            self.defined.clear()  # a rank may have been started again: it knows nothing
        return found

    def is_moved(self) -> bool:
        """Tell whether ranks were started again since it was last asked whom to send to."""
        return self._target is not None and self._target.version != self.engine.workers.version

    def words(self) -> str:
        """Write it for people: `mesh0 {gpus: 2}, ranks 2-3`."""
        sizes = ", ".join(f"{name}: {size}" for name, size in self.sizes.items())
        found = f"{self.engine.procs.name} {{{sizes}}}" if sizes else self.engine.procs.name
        if len(self.ranks) < len(self.engine.procs.processes):
            found += f", {rank_words(self.ranks)}"
        stream = "" if self.engine.stream == MAIN else f", stream {self.engine.stream!r}"
        return found + (", as one" if self.is_global else "") + stream


class Ref:
    """A tensor on the ranks: it lives there as long as this does here, and its mesh with it."""

    __slots__ = ("_mesh", "home", "id")

    def __init__(self, home: Home, mesh: object) -> None:
        self.id = next(_ids)
        self._mesh = mesh
        self.home = home

    def __del__(self) -> None:
        home = self.home  # set last: what is half made frees nothing
        home.freed.append(self.id)
        if not home.engine.awake:
            home.engine.wake()


class _Dropped:
    """In place of the ref of a tensor that the user has dropped."""

    @property
    def home(self) -> Home:
        raise RuntimeError("this tensor was dropped: t.drop(). Make it anew, or keep it longer")


DROPPED: Final[Any] = _Dropped()
_ids: Final = itertools.count(1)
_batches: Final = itertools.count(1)


class BatchCall(GatherCall):
    """A batch on its way: done when every rank has run it.

    It cannot be cancelled, or its commands would be lost on some ranks: what an interrupt ends is
    the command that runs.
    """

    __slots__ = ()
    can_be_cancelled = False
    interrupts_what_runs = True

    def deliver(self, message: Message) -> None:
        """Take an answer; what has failed is told by whatever is fetched."""
        if message.rank < len(self._answers) and self._answers[message.rank] is None:
            self._answers[message.rank] = message
            self._missing -= 1
            if not self._missing and self._close():
                self._set_result(None)

    def wait_for_people(self) -> Wait | None:
        found = super().wait_for_people()
        return None if found is None else found._replace(what="tensors")


class _Packet:
    def __init__(
        self,
        home: Home,
        definitions: list[Definition],
        batch: list[int],
        tickets: list[Ticket],
    ) -> None:
        self.target = home.target()
        self._content = (next(_batches), definitions, array.array("q", batch).tobytes())
        self._payload: Payload | None = None
        self._next = 0
        self.call: BatchCall = make(BatchCall)
        _begin(self.call, self.target)
        for each in tickets:
            each.leave_with(self.call)

    def post(self) -> None:
        # Send it. To be called again if it was interrupted: ranks take a batch once.
        proc, target, call = current.proc(), self.target, self.call
        if self._payload is None:
            self._payload = self._encoded()
        while (rank := self._next) < len(target.processes):
            process, reply = target.processes[rank], call.port
            proc.send(
                process, CALL, target.port, self._payload, reply=reply, rank=rank, tag=call.tag
            )
            self._next += 1
        proc.look_for_dead(call)

    def _encoded(self) -> Payload:
        proc = current.proc()
        content: tuple[object, ...] = ("run", self._content, {}, *self.target.extent, None)
        if self._content[1]:
            return proc.encode(content, self.target.processes)
        return proc.encode_bytes(pickling.dumps_plain(content))


class Engine:
    """One stream on the processes of one spawn. `kind` is the class of its tensors here."""

    def __init__(self, procs: ProcsState, stream: str, kind: type[torch.Tensor]) -> None:
        self.procs = procs
        self.stream = stream
        self.kind = kind
        self.workers = self._started_workers()
        self.awake = False
        """Whether the flusher looks at it."""
        self._homes: dict[tuple[object, ...], Home] = {}
        self._lock = threading.RLock()
        self._home: Home | None = None  # of the batch that is open
        self._batch: list[int] = []
        self._definitions: list[Definition] = []
        self._tickets: list[Ticket] = []
        self._leaving: _Packet | None = None
        self._count = 0
        self._site = -1
        self._due = 0.0
        self._on_their_way: collections.deque[BatchCall] = collections.deque()

    def _started_workers(self) -> ActorsState:
        runtime = current.runtime()
        if flusher.close not in runtime.at_close:
            runtime.at_close.append(flusher.close)
            flusher.start()
        name = f"tensors-{self.stream}"
        spawned: Any = self.procs.view().spawn(name, TensorWorker, self.procs.name, self.stream)
        found: ActorsState = spawned._state
        return found

    @staticmethod
    def of(procs: ProcsState, stream: str, kind: type[torch.Tensor]) -> Engine:
        """Return the engine of a stream, started at first use."""
        with _starting:
            found = procs.streams.get(stream)
            if found is None:
                first = next(iter(procs.streams.values()), None)
                found = procs.streams[stream] = (
                    first.beside(stream)
                    if isinstance(first, Engine)
                    else Engine(procs, stream, kind)
                )
            assert isinstance(found, Engine)
            return found

    def beside(self, stream: str) -> Engine:
        """Make that of another stream of its processes."""
        return type(self)(self.procs, stream, self.kind)

    def other(self, procs: ProcsState, stream: str) -> Engine:
        """Return that of other processes. Raises `ValueError` for simulated and real ones."""
        found = Engine.of(procs, stream, self.kind)
        if type(found) is not type(self):
            raise ValueError(
                f"nothing goes from {self.procs.name!r} to {procs.name!r}: one of them is "
                "simulated, and has no values"
            )
        return found

    def modes(self) -> list[contextlib.AbstractContextManager[object]]:
        """Return modes of PyTorch's that belong to a mesh which is active: none."""
        return []

    def home(self, shape: Shape, part: RankPart | None = None) -> Home:
        key = (part is not None, *shape.labels, *shape.ndslice.sizes, *shape.ranks())
        found = self._homes.get(key)
        if found is None:
            found = self._homes.setdefault(key, Home(self, shape, part))
        return found

    def issue(
        self,
        home: Home,
        definition: Definition,
        numbers: list[int],
        new: Sequence[TensorMeta],
        ticket: Ticket | None = None,
    ) -> None:
        """Add a command: the number of its definition, refs and scalars.

        `new`: the kinds of the tensors that it makes, as far as they are known. `ticket`: of the
        call to actors that it makes, for which others of this process wait.
        """
        del new  # ranks see what comes
        site = call_sites.current()
        with self._lock:
            if self.workers.trouble or home.is_moved():
                self._check(home)
            if home is not self._home:
                self._turn_to(home)
            if definition.number not in home.defined:
                self._definitions.append(definition)
                if not definition.once:
                    home.defined.add(definition.number)
            if home.freed:
                self._free(home)
            if site != self._site:
                self._batch += (SITE, site)
                self._site = site
            if ticket is None:
                self._batch += numbers
            else:
                self._batch += [*numbers, OPEN, ticket.port & ~ACTOR_BIT, ticket.number]
                self._tickets.append(ticket)
                note(ticket)
            self._count += 1
            if self._count >= FULL or (time.monotonic() > self._due and self._are_idle()):
                self._send()
        if not self.awake:
            self.wake()

    def flush(self) -> None:
        with self._lock:
            for home in [each for each in self._homes.values() if each.freed]:
                self._flush_freed(home)
            if self._batch or self._leaving is not None:
                self._send()

    def wake(self) -> None:
        """Let the flusher look after it. Any thread, also from a finalizer."""
        self.awake = True
        flusher.look_after(self)

    def falls_asleep(self) -> bool:
        """Tell whether nothing is open; then who adds something wakes it."""
        self.awake = False  # before the look: who adds after it wakes it
        self.awake = not self.is_idle()
        return not self.awake

    def ask(self, target: Target, call: C, contents: Callable[[int], tuple[object, ...]]) -> C:
        """Send a call to all ranks of a target, behind all that was issued: `contents(i)` are the
        arguments for rank i of it. All ranks see calls and batches in one order."""
        with self._lock:
            self.flush()
            _begin(call, target)
            proc, left = current.proc(), list(range(len(target.processes)))

            def send() -> None:
                while left:
                    index = left[0]
                    content: tuple[object, ...]
                    content = (target.method, contents(index), {}, *target.extent, None)
                    payload = proc.encode_bytes(pickling.dumps(content))
                    process, reply = target.processes[index], call.port
                    proc.send(
                        process, CALL, target.port, payload, reply=reply, rank=index, tag=call.tag
                    )
                    del left[0]
                proc.look_for_dead(call)

            unbroken(send)
            return call

    def flush_if_due(self) -> None:
        """Do as `flush`, where nothing was added for a while. What is lost is nobody's here.

        Never waits: who holds the lock may wait for ranks, which may wait for another engine.
        """
        if time.monotonic() <= self._due or self.is_idle():
            return
        if self._lock.acquire(blocking=False):
            try:
                if self._are_idle():
                    with contextlib.suppress(MeshError, RuntimeError):
                        self.flush()
            finally:
                self._lock.release()

    def is_over(self) -> bool:
        """Return whether its mesh was stopped, or ranks of it are lost."""
        return self.procs.ended is not None or bool(self.procs.lost)

    def is_idle(self) -> bool:
        """Return whether nothing waits to be sent."""
        freed = any(home.freed for home in list(self._homes.values()))
        return not (freed or self._batch or self._leaving)

    def _are_idle(self) -> bool:
        # while they have work, what is open may grow: a large batch costs less than many small ones
        behind = self._on_their_way
        while behind and behind[0].done():
            behind.popleft()
        self._due = time.monotonic() + AGE_S
        return len(behind) < AHEAD

    def _check(self, home: Home) -> None:
        if self._batch and home is self._home and home.is_moved():
            self._abandon()  # a rank that is new knows nothing of what is open
        try:
            home.target()
        except (MeshError, RuntimeError):
            if home is self._home:
                self._abandon()
            raise

    def _turn_to(self, home: Home) -> None:
        if self._batch or self._leaving is not None:
            try:
                self._send()
            except (MeshError, RuntimeError):  # told to whoever uses that home again
                self._abandon()
        home.target()
        self._home = home
        self._due = time.monotonic() + AGE_S

    def _flush_freed(self, home: Home) -> None:
        try:
            if home is not self._home:
                self._turn_to(home)
            self._free(home)
        except (MeshError, RuntimeError):  # gone with its ranks
            home.freed.clear()

    def _free(self, home: Home) -> None:
        freed, found = home.freed, list[int]()
        while freed:
            found += (FREE, freed.popleft())
        self._batch += found

    def _send(self) -> None:
        unbroken(self._post)
        if not self._are_idle() and len(self._on_their_way) > BEHIND:
            self._on_their_way[BEHIND // 2].exception()

    def _post(self) -> None:
        if self._leaving is None and self._batch:
            assert self._home is not None
            packet = _Packet(self._home, self._definitions, self._batch, self._tickets)
            # one step: nothing is called in these three lines
            self._leaving, self._batch = packet, []
            self._definitions, self._tickets = [], []
            self._count, self._site = 0, -1
        if self._leaving is not None:
            self._leaving.post()
            self._on_their_way.append(self._leaving.call)
            self._leaving = None

    def _abandon(self) -> None:
        with self._lock:
            if self._home is not None:
                self._home.freed.clear()
                self._home.defined.clear()
            for each in self._tickets:
                each.make_void()
            self._batch, self._definitions, self._leaving = [], [], None
            self._tickets = []
            self._count, self._site, self._home = 0, -1, None


_starting: Final = threading.Lock()


def _begin(call: GatherCall, target: Target) -> None:
    # It can be answered from now on; it is not sent yet
    call._begin(current.proc(), target, context.current_tag())
    call.expect()


def unbroken(action: Callable[[], object]) -> None:
    """Call it until it comes to its end; then raise the interrupt that came up meanwhile."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            action()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
