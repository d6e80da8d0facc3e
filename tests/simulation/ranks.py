"""A rank: it executes what it is called for, one after another, and answers. It decides with the
real messaging (`Proc`), supervision and view of its controller."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_nb.core.shape.extent import Extent, Shape
from monarch_nb.core.wire.frames import CALL, REPLY, ROOT_PORT, Message
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages import keeping
from monarch_nb.meshes.states import ProcsState
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.calls import GatherCall, SingleCall, Target
from monarch_nb.process.futures.future import make
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc, serve
from monarch_nb.process.supervision.recent_errors import RecentErrors
from monarch_nb.process.supervision.supervision import Supervision
from monarch_nb.worker.cells.unseen import UnseenCells
from monarch_nb.worker.controller import Controller
from tests.simulation.clock import Loop
from tests.simulation.site import NOWHERE, Place, Site

if TYPE_CHECKING:
    from tests.simulation.agents import Agent
    from tests.simulation.ledger import Ledger

_ORDER = struct.Struct("<BQQ")
STEP = 0
ASK = 1
"""Ask another rank first."""
SPAWN = 2
"""Spawn a rank of its own."""


class Order(NamedTuple):
    """What a call is for: its number, and the process that it is about."""

    what: int
    number: int
    about: int = 0

    def payload(self) -> Payload:
        return Payload(_ORDER.pack(*self))


def shape_of(count: int) -> Shape:
    return Extent(["rank"], [count]).region.as_shape()


def mesh_of(number: int, processes: list[int], agents: list[int]) -> ProcsState:
    return ProcsState(
        number=number,
        name=f"mesh{number & 0xFFFF}",
        owner_port=ROOT_PORT,
        shape=shape_of(len(processes)),
        processes=processes,
        agents=agents,
        slots=[0] * len(agents),
        chosen_gpus=[None] * len(agents),
        owned=True,
        wrap=lambda state: state,
    )


class Gathered(GatherCall):
    """A call to many that an onlooker counts."""

    __slots__ = ("ledger", "number")
    ledger: Ledger
    number: int

    def begin(self, ledger: Ledger, proc: Proc, target: Target, number: int) -> None:
        self.ledger, self.number = ledger, number
        ledger.called(number, proc.id, target.processes)
        self._begin(proc, target, 0)
        self.expect()

    def _arrive(self, content: Any) -> None:
        self.ledger.ended(self.number)
        if content is None and any(bytes(each.payload) != b"done" for each in self._answers):
            self.ledger.is_wrong(f"call {self.number} has another answer than was given")
        super()._arrive(content)


class Single(SingleCall[Any]):
    """A call to one that an onlooker counts."""

    __slots__ = ("ledger", "number")
    ledger: Ledger
    number: int

    def begin(self, ledger: Ledger, proc: Proc, target: Target, number: int) -> None:
        self.ledger, self.number = ledger, number
        ledger.called(number, proc.id, target.processes)
        self._begin(proc, target, 0)

    def _arrive(self, content: Any) -> None:
        self.ledger.ended(self.number)
        super()._arrive(content)


def call_all(ledger: Ledger, proc: Proc, target: Target, order: Order) -> Gathered:
    """Call ranks, as an endpoint does."""
    call = make(Gathered)
    call.begin(ledger, proc, target, order.number)
    receivers = target.receivers(proc)
    proc.cast(receivers, CALL, target.port, order.payload(), reply=call.port)
    proc.look_for_dead(call)
    return call


def call_one(ledger: Ledger, proc: Proc, target: Target, order: Order) -> Single:
    call = make(Single)
    call.begin(ledger, proc, target, order.number)
    proc.send(target.processes[0], CALL, target.port, order.payload(), reply=call.port)
    proc.look_for_dead(call)
    return call


class Rank:
    """One process. It has forked just now; `boot` makes it hear."""

    def __init__(
        self, agent: Agent, site: Site, process: int, wanted: messages.Spawn, controller: int
    ) -> None:
        self.world = agent.world
        self.process = process
        self.loop = Loop(self.world.clock)
        self.is_over = False
        self.owner = wanted.owner
        self.pid = self.world.new_pid()
        self._agent = agent
        self._wanted = wanted
        place: Any = Place(site, self.loop)
        self.proc = Proc(
            process=process,
            agent=agent.process,
            controller=controller,
            run_dir=place,
            config=self.world.config,
        )
        self.supervision = Supervision(self.proc, {}, lambda *_: None)
        self.controller = Controller(
            self.proc, self.supervision, NOWHERE, UnseenCells(), RecentErrors()
        )
        self.controller.on_change.append(lambda old, _: self._former.add(old))
        self.supervision.on_exit.append(self._lost)
        self._former: set[int] = set()
        self._calls: deque[Message] = deque()
        self._is_busy = False
        self._asked: dict[int, Single] = {}
        self._is_stubborn = self.world.chance(0.05)
        self._site = site

    def boot(self) -> None:
        wanted, supervision = self._wanted, self.supervision
        port = wanted.mesh or 0
        self.proc.ports[port] = self._on_call
        self.proc.start([
            serve(messages.Exited, supervision.on_exited),
            serve(messages.Silent, supervision.on_silent),
            serve(messages.Heard, supervision.on_heard),
            serve(messages.Leave, self._on_leave),
            serve(messages.Spawned, lambda _told, _message: None),
            serve(keeping.ControllerGone, self.controller.on_gone),
            serve(keeping.TakeControl, self.controller.on_take),
        ])  # fmt: skip
        if wanted.owner is not None and wanted.ready_port is not None:
            pid = Payload(self.pid.to_bytes(8, "little"))
            self.proc.send(wanted.owner, REPLY, wanted.ready_port, pid)

    def exit(self, *, code: int | None = None, signal: int | None = None) -> None:
        if self.is_over:
            return
        self.is_over = self.loop.is_over = True
        self._site.end(self.process)
        self.world.ledger.forget_calls_of(self.process)
        self._agent.rank_exits(self, code, signal)

    def _on_leave(self, leave: messages.Leave, _: Message) -> None:
        if not self._is_stubborn:
            self.loop.after(self.world.some_s(0.3), lambda: self.exit(code=0))

    def _lost(self, gone: Exit) -> None:
        self.world.ledger.told_dead(self.process, gone.process)

    # calls

    def _on_call(self, message: Message) -> None:
        if message.source in self._former:
            what = f"{self.process:x} is called by {message.source:x}, which drives it no more"
            self.world.ledger.is_wrong(what)
        self._calls.append(message)
        self._next()

    def _next(self) -> None:
        if self._calls and not self._is_busy:
            self._is_busy = True
            self._execute(self._calls.popleft())

    def _execute(self, message: Message) -> None:
        order = Order(*_ORDER.unpack(bytes(message.payload)))
        self.world.ledger.executes(self.process, message.source, order.number)
        if order.what == ASK:
            self._ask(order, message)
            return
        if order.what == SPAWN:
            self._spawn(order.about)
        took_s = self.world.some_s(0.02) if self.world.chance(0.97) else self.world.some_s(3.0)
        self.loop.after(took_s, lambda: self._answer(message))

    def _answer(self, message: Message) -> None:
        if message.reply:
            answer = Payload(b"done")
            self.proc.send(message.source, REPLY, message.reply, answer, rank=message.rank)
        self._is_busy = False
        self._next()

    def _ask(self, order: Order, message: Message) -> None:
        mesh = mesh_of(self._wanted.mesh or 0, [order.about], [0])
        target = Target(mesh, "step", [order.about], [0], shape_of(1))
        asked = Order(STEP, self.world.new_number())
        call = self._asked[order.about] = call_one(self.world.ledger, self.proc, target, asked)
        call.add_done_callback(lambda _: self._has_asked(order.about, message))

    def _has_asked(self, process: int, message: Message) -> None:
        del self._asked[process]
        self._answer(message)

    def asked(self) -> list[int]:
        """Whose answers it waits for."""
        return list(self._asked)

    def give_up(self, process: int) -> None:
        """Wait for this answer no more, as its user would after a while."""
        self._asked[process].lost(Exit(process, reason="nobody carries its answer any more"))

    def _spawn(self, child: int) -> None:
        mesh = mesh_of(self.world.new_mesh_number(), [child], [self._agent.process])
        self.supervision.own(mesh)
        self.proc.watching([child])
        wanted = messages.Spawn([child], owner=self.process, mesh=mesh.number)
        self.proc.ask(self._agent.process, wanted, lambda _: None)
