"""`Runtime`: the parts of one process put together. A client and a rank differ in who starts it and
in its root."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from monarch_nb import config
from monarch_nb.actors.driver import Driver
from monarch_nb.actors.hosting import Hosting, RankHooks
from monarch_nb.actors.undeliverable import Returns
from monarch_nb.config import Config
from monarch_nb.core.shape.extent import Extent, Point, Shape
from monarch_nb.core.wire.frames import ROOT_PORT, Message
from monarch_nb.core.wire.messages import actors, agents
from monarch_nb.meshes.healing.healing import Healing
from monarch_nb.meshes.hosts import Hosts
from monarch_nb.meshes.proc_mesh import ProcMesh, restore_procs, whole_mesh
from monarch_nb.meshes.process_groups import Membership
from monarch_nb.meshes.restarting.restarts import Restarts
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import ProcsState
from monarch_nb.process import current
from monarch_nb.process.instance import Instance, here
from monarch_nb.process.process import Proc, Serve, serve
from monarch_nb.process.supervision.moved_ranks import MovedRanks
from monarch_nb.process.supervision.supervision import MeshFailure, Supervision
from monarch_nb.services.elastic import Elastic
from monarch_nb.services.stores import Stores
from monarch_nb.services.transfer.buffers import Buffers
from monarch_nb.services.transfer.mail import Mail
from monarch_nb.services.transfer.tensors import Exchange

# Python's log records say which actor wrote them: `[actor=<...>] ` in front of the message. As in
# Monarch, in the client and in actors; cells and threads of a rank are none.
# `config.prefix_python_logs_with_actor = False` switches it off in its process.


class _Before:
    make: Callable[..., logging.LogRecord] = logging.LogRecord


def _install_marks() -> None:
    found = logging.getLogRecordFactory()
    if found is not _marked:
        _Before.make = found
        logging.setLogRecordFactory(_marked)


def _uninstall_marks() -> None:
    if logging.getLogRecordFactory() is _marked:
        logging.setLogRecordFactory(_Before.make)


def _marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = _Before.make(*args, **kwargs)
    name = _writer() if config.prefix_python_logs_with_actor else ""
    if name:
        mark = f"[actor={name}] "
        record.msg = f"{mark.replace('%', '%%') if record.args else mark}{record.msg}"
    return record


def _writer() -> str:
    runtime = current.running()
    if runtime is None:
        return ""
    found = here.get()
    instance = runtime.root if found is None else found.instance
    is_rank = runtime.proc.id != runtime.proc.controller
    return "" if instance is runtime.root and is_rank else str(instance)


class _Root:
    """The root is no actor: it lives in its process alone, and ends with it."""

    wants_returns = False

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._state: ProcsState | None = None

    def proc_mesh(self) -> ProcMesh:
        if self._state is None:
            self._state = ProcsState(
                agents=[self._proc.agent],
                number=self._proc.id,
                name="this_proc",
                owner_port=ROOT_PORT,
                shape=Shape.unity(),
                processes=[self._proc.id],
                owned=True,
                wrap=whole_mesh,
            )
        return whole_mesh(self._state)

    def stop_self(self, reason: str) -> None: ...
    def abort_self(self, reason: str) -> None: ...


class Runtime(Hosts):
    """Messaging, actors, supervision and meshes of this process.

    `on_root_failure(failure, seen)` is told what no actor owns; by default it is written to the
    standard error: on a rank a cell or a thread has spawned what has failed.
    """

    def __init__(
        self,
        *,
        process: int,
        agent: int,
        controller: int,
        run_dir: Path,
        config: Config,
        point: Point | None = None,
        name: str = "root",
        hooks: RankHooks | None = None,
        membership: Membership | None = None,
        elastic: Elastic | None = None,
        on_root_failure: Callable[[MeshFailure, bool], None] | None = None,
    ) -> None:
        proc = Proc(
            process=process, agent=agent, controller=controller, run_dir=run_dir, config=config
        )
        drivers: dict[int, Driver] = {}
        supervision = Supervision(proc, drivers, on_root_failure or self._root_failed)
        super().__init__(proc, Spawner(proc, supervision), supervision)
        self.hosting = Hosting(
            proc,
            drivers,
            hooks or RankHooks(),
            restore_mesh=restore_procs,
            stop_owned_by=self.spawner.stop_owned_by,
        )
        self.buffers = Buffers(proc, self.hosting)
        self.membership = membership or Membership()
        self.root = Instance(
            _Root(proc),
            process=process,
            port=ROOT_PORT,
            name=name,
            class_name="root",
            point=point or Point(0, Extent([], [])),
            creator="",
            owner=(controller, ROOT_PORT),
        )
        self.at_close: list[Callable[[], None]] = []
        """Called when this process leaves the mesh, or its runtime ends."""
        moved = MovedRanks(proc, supervision)
        healing = Healing(proc, supervision, moved, self)
        # each found by its class where users call, or messages arrive
        self.parts: dict[type, Any] = {type(part): part for part in (
            self.hosting, self.buffers, self.membership, supervision, self.spawner, moved,
            healing, Returns(proc, drivers), Restarts(supervision, self.spawner, moved, healing),
            Exchange(self.buffers.copiers), Mail(proc), Stores(proc, supervision),
            elastic or Elastic(),
        )} | {Hosts: self}  # fmt: skip

    def root_tag(self) -> int:
        found = here.get()
        return self.root.tag if found is None else found.tag

    def _root_failed(self, failure: MeshFailure, seen: bool) -> None:
        if not seen:
            sys.stderr.write(f"Unhandled failure on {self.root.name}: {failure.report()}\n")

    def start(
        self, handlers: Iterable[Serve] = (), after_interrupt: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Begin to receive what every process handles, and what `handlers` do.

        `after_interrupt` are called in order when calls to an actor of this process have been
        interrupted, in the inbox thread.
        """

        def on_interrupt(interrupt: actors.Interrupt, message: Message) -> None:
            self.hosting.on_interrupt(interrupt, message)
            for listener in after_interrupt:
                listener()

        _install_marks()
        hosting, supervision, parts = self.hosting, self.supervision, self.parts
        self.proc.start([
            serve(actors.AwaitBoot, hosting.on_await_boot),
            serve(actors.SpawnActor, hosting.on_spawn),
            serve(actors.StopActor, hosting.on_stop),
            serve(actors.Interrupt, on_interrupt),
            serve(actors.Fence, parts[Returns].on_fence),
            serve(actors.Undelivered, parts[Returns].on_undelivered),
            serve(actors.ActorFailed, supervision.on_actor_failed),
            serve(agents.Exited, supervision.on_exited),
            serve(agents.Silent, supervision.on_silent),
            serve(agents.Heard, supervision.on_heard),
            serve(actors.Healed, parts[MovedRanks].on_healed),
            serve(actors.NotRestarted, parts[MovedRanks].on_not_restarted),
            serve(actors.OfferTensor, parts[Exchange].on_offer),
            serve(actors.ReadBuffer, self.buffers.on_read),
            serve(actors.WriteBuffer, self.buffers.on_write),
            serve(actors.DropBuffer, self.buffers.on_drop),
            *parts[Stores].handlers(),
            *handlers,
        ])  # fmt: skip

    def close(self, linger_s: float = 0.5) -> None:
        for ending in self.at_close:
            ending()
        _uninstall_marks()
        self.spawner.close()
        self.hosting.close()
        self.buffers.close()
        self.proc.close(linger_s)
