"""`Hosting`: the actors that live in this process, by port.

Rules: a port that had an actor answers for ever, saying why it ended; a message for an actor that
is still on its way here, or is restarted, waits for it, but not for ever. Everything here runs in
the inbox thread unless it says otherwise.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors.async_driver import AsyncDriver
from monarch_nb.actors.driver import ActorEnded, Board, Driver
from monarch_nb.actors.gate import Gate
from monarch_nb.actors.ports import address_of_port
from monarch_nb.actors.post_mortem import LastFailures
from monarch_nb.actors.sync_driver import SyncDriver, WorkQueue
from monarch_nb.actors.undeliverable import send_back
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.points import point
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import ACTOR_BIT, CALL, ERROR, GATE_BIT, Message
from monarch_nb.core.wire.messages.actors import (
    ActorFailed,
    AwaitBoot,
    Booted,
    Interrupt,
    SpawnActor,
    StopActor,
)
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.process.instance import here
from monarch_nb.process.payloads import Handed, Payload
from monarch_nb.process.process import ANY_PORT, Proc
from monarch_nb.process.supervision.recent_errors import RecentErrors

if TYPE_CHECKING:
    from monarch_nb.process.futures.future import Future

log = logging.getLogger("monarch_nb")
PARKING_S: Final = 30.0


@dataclass(frozen=True)
class RankHooks:
    """The services of a rank that other processes lack; the defaults are for those."""

    board: Board | None = None
    queues: list[Callable[[], int]] = field(default_factory=list)
    """How much waits in each queue of this process; actors add theirs."""
    main_queue: WorkQueue | None = None
    interrupt_main: Callable[[], None] = lambda: None
    flush_output: Callable[[], None] | None = None


class Hosting:
    """Spawns, finds, stops and interrupts the actors of this process.

    `restore_mesh` makes a handle of a pickled one; `stop_owned_by(port)` ends what an actor owns.
    """

    def __init__(
        self,
        proc: Proc,
        drivers: dict[int, Driver],
        hooks: RankHooks,
        *,
        restore_mesh: Callable[[tuple[Any, ...]], Any],
        stop_owned_by: Callable[[int], list[Future[None]]],
    ) -> None:
        self.proc = proc
        self.drivers = drivers
        self.restore_mesh = restore_mesh
        self.stop_owned_by = stop_owned_by
        self.board = hooks.board
        self.queues = hooks.queues
        self.flush_output = hooks.flush_output
        self.interrupt_main = hooks.interrupt_main
        self.recent_errors = RecentErrors()
        self.failed = LastFailures()
        self.on_raised: list[Callable[[BaseException], None]] = []
        """Called with what a call has raised, in its thread, before the caller is told."""
        self.on_ended: list[Callable[[int], None]] = []
        """Called with the port of each actor that has ended."""
        self.gate = Gate(proc.id, proc.deliver, self._has_ended)
        self.uncopied: dict[int, Handed | None] = {}
        """Ports of this process that take an answer from an actor of it as it is; the answer."""
        self._main_queue = hooks.main_queue
        self._main_taken = False
        self._booted = threading.Event()
        self._boot_error: BaseException | None = None
        self._boot_watchers: list[Message] = []
        self._untold: list[tuple[SpawnActor, ActorEnded]] = []  # failures
        self._telling = threading.Lock()
        self._parked: dict[int, list[Message]] = {}
        self._restarting: dict[int, tuple[ActorEnded, str]] = {}  # why they failed; addresses
        self._limits: dict[int, threading.Timer] = {}
        self._parking = threading.Lock()
        proc.ports[ANY_PORT] = self._on_unknown

    # the process's start

    def booted(self, error: BaseException | None = None) -> None:
        self._boot_error = error
        with self._parking:
            self._booted.set()
            waiting, self._boot_watchers = self._boot_watchers, []
        for message in waiting:
            self._tell_booted(message)

    def on_await_boot(self, _: AwaitBoot, message: Message) -> None:
        with self._parking:
            if not self._booted.is_set():
                self._boot_watchers.append(message)
                return
        self._tell_booted(message)

    def _tell_booted(self, message: Message) -> None:
        error = self._boot_error
        record = None if error is None else ErrorRecord.from_exception(error)
        self.proc.answer(message, Booted(record))

    def boot_error(self) -> BaseException | None:
        """Wait for the bootstrap function; what it raised. The actor's thread."""
        self._booted.wait()
        return self._boot_error

    # control messages

    def on_spawn(self, spec: SpawnActor, message: Message) -> None:
        """Make an actor."""
        if spec.owner[0] in self.proc.dead:
            return
        spec = spec._replace(rank=spec.rank + message.rank)
        driver: Driver
        if spec.sync:
            queue = self._main_queue_for_first() if spec.main else None
            driver = SyncDriver(self, spec, message, queue)
        else:
            driver = AsyncDriver(self, spec, message)
        with self._parking:
            self.drivers[spec.port] = driver
            self._restarting.pop(spec.port, None)
            self.proc.ports[spec.port] = driver.deliver
            waiting = self._unpark(spec.port)
        for each in waiting:
            driver.deliver(each)

    def _main_queue_for_first(self) -> WorkQueue | None:
        if self._main_taken:
            return None
        self._main_taken = self._main_queue is not None
        return self._main_queue

    def on_stop(self, stop: StopActor, message: Message) -> None:
        """End an actor."""
        driver = self.drivers.get(stop.port)
        if driver is None:
            self._restart_no_more(stop.port, stop.reason)
            self.proc.answer(message, Done())
        else:
            driver.request_stop(message, stop.reason)

    def on_interrupt(self, interrupt: Interrupt, message: Message) -> None:
        """Interrupt calls to an actor, or drop those that wait."""
        driver = self.drivers.get(interrupt.port)
        if driver is None:
            return
        point("interrupt")
        for reply in interrupt.replies:
            driver.interrupt((message.source, reply))
        if interrupt.running and (key := driver.running) is not None:
            driver.interrupt(key)

    def _has_ended(self, port: int) -> bool:
        is_known = port in self.proc.ports or port in self._restarting
        return is_known and port not in self.drivers

    def _on_unknown(self, message: Message) -> None:
        if message.kind == CALL and message.port & GATE_BIT and message.port & ACTOR_BIT:
            self.gate.arrive(message)
            return
        if message.kind != CALL or not message.port & ACTOR_BIT:
            self.proc.discard(message)  # an answer that nobody waits for any more
            dest = address_of_port(self.proc.id, message.port)
            send_back(self.proc, message, dest, "nobody receives there any more")
            return
        with self._parking:
            handler = self.proc.ports.get(message.port)
            if handler is None:
                self._park(message)
                return
        handler(message)

    def _park(self, message: Message) -> None:
        waiting = self._parked.setdefault(message.port, [])
        waiting.append(message)
        if len(waiting) == 1:
            limit = threading.Timer(PARKING_S, self._give_up, (message.port,))
            limit.daemon = True
            limit.name = "monarch-parking"
            self._limits[message.port] = limit
            limit.start()

    def _unpark(self, port: int) -> list[Message]:
        if (limit := self._limits.pop(port, None)) is not None:
            limit.cancel()
        return self._parked.pop(port, [])

    def close(self) -> None:
        with self._parking:
            for port in list(self._limits):
                self._unpark(port)

    def _give_up(self, port: int) -> None:
        with self._parking:
            waiting = self._unpark(port)
            text = f"there is no such actor in process {self.proc.id:016x}"
            nobody = ActorEnded(text), f"{self.proc.id:016x}/{port:x}"
            ended, address = self._restarting.get(port, nobody)
        for message in waiting:
            self.refuse(message, ended, address)

    def _restart_no_more(self, port: int, why: str) -> None:
        # it had failed, and its owner will not send it again
        with self._parking:
            failed = self._restarting.pop(port, None)
            if failed is None:
                return
            waiting = self._unpark(port)
            ended, address = ActorEnded(f"{failed[0].text}; {why}"), failed[1]
            self.proc.ports[port] = lambda message: self.refuse(message, ended, address)
        for message in waiting:
            self.refuse(message, ended, address)

    # for drivers

    def sealed(self, message: Message, value: object) -> Payload:
        """Pickle the answer to a call. Runs user code, which may raise."""
        if self.uncopied and message.source == self.proc.id and message.reply in self.uncopied:
            handed = self.uncopied[message.reply] = Handed(value)
            return self.proc.encode_bytes(pickling.dumps_plain(handed))
        return self.proc.encode(value, (message.source,))

    def note_error(self, error: BaseException, what: str, tag: int, record: object) -> None:
        self.recent_errors.note(what, tag, record)
        for listener in self.on_raised:
            listener(error)

    def mark_ended(self, driver: Driver, ended: ActorEnded) -> None:
        port, address = driver.spec.port, str(driver.instance.actor_id)
        if driver.comes_back:
            with self._parking:
                self._restarting[port] = ended, address
                self.proc.ports.pop(port, None)
        else:
            self.proc.ports[port] = lambda message: self.refuse(message, ended, address)
        self.failed.forget(port)  # frames hold the actor, and that what is on its GPU
        for listener in self.on_ended:
            listener(port)
        if self.drivers.get(port) is driver:
            del self.drivers[port]
        self.gate.end(port)
        if driver.on_main:
            self._main_taken = False
        else:
            self.queues.remove(driver.waiting)

    def refuse(self, message: Message, ended: ActorEnded, address: str) -> None:
        """Answer a message to an actor that has ended: its caller and its sender are told."""
        self.proc.discard(message)
        self.answer_lost(message, ended)
        send_back(self.proc, message, address, ended.text)

    def answer_lost(self, message: Message, ended: ActorEnded) -> None:
        if message.reply:
            payload, rank, tag = Payload(ended.sealed()), message.rank, message.tag
            self.proc.send(message.source, ERROR, message.reply, payload, rank=rank, tag=tag)

    def undisturbed(self, action: Callable[[], None]) -> None:
        """Do a piece of our work in a call of an actor here: an interrupt comes up behind it."""
        caller = here.get()
        driver = None if caller is None else self.drivers.get(caller.instance.port)
        if driver is None:
            action()
        else:
            driver.interrupts.undisturbed(action)

    def tell_owner(self, owner: int, spec: SpawnActor, ended: ActorEnded) -> None:
        """Tell the process that owns an actor how this has failed; later, if a controller that has
        gone owns it."""
        with self._telling:
            if owner == self.proc.controller and owner in self.proc.dead:
                self._untold.append((spec, ended))
                return
        failed, payload = ActorFailed(spec.port, ended.text), Payload(ended.sealed())
        self.proc.control(owner, failed, payload=payload, rank=spec.rank)

    def belong_to(self, old: int, controller: int) -> None:
        """Have what one controller has spawned be another's, which is told what has failed since
        the first has gone."""
        for driver in list(self.drivers.values()):
            if driver.instance.owner[0] == old:
                driver.instance.belong_to((controller, driver.instance.owner[1]))
        with self._telling:
            untold, self._untold = self._untold, []
        for spec, ended in untold:
            self.tell_owner(controller, spec, ended)

    def interrupt_all(self) -> None:
        for driver in list(self.drivers.values()):
            if (key := driver.running) is not None:
                driver.interrupt(key)

    def log_exception(self, text: str) -> None:
        log.warning("%s:\n%s", text, traceback.format_exc())
