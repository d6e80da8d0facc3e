"""`Runtime`: the parts of one process put together. A client and a rank differ in who starts it and
in its root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from monarch_nb.actors.hosting import Hosting
from monarch_nb.config import Config
from monarch_nb.core.shape.extent import Extent, Point, Shape
from monarch_nb.core.wire.frames import ROOT_PORT, Message
from monarch_nb.core.wire.messages import actors, agents
from monarch_nb.core.wire.messages.agents import Hello, Here, Shutdown, StopAll
from monarch_nb.core.wire.messages.codec import Done, Refused, Request
from monarch_nb.meshes.bootstrap import Environment
from monarch_nb.meshes.healing import Healing
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.process_groups import Seat
from monarch_nb.meshes.spawning import Meshes
from monarch_nb.process import context
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.future import Future, before_wait, make
from monarch_nb.process.process import Proc, Serve, serve
from monarch_nb.process.supervision.mesh_state import ProcsState
from monarch_nb.process.supervision.moved_ranks import Handles
from monarch_nb.process.supervision.supervision import MeshFailure, Supervision
from monarch_nb.services import logs
from monarch_nb.services.transfer.buffers import Buffers
from monarch_nb.services.transfer.by_number import Mail
from monarch_nb.services.transfer.tensors import Exchange

if TYPE_CHECKING:
    from monarch_nb.meshes.synced import Landing

_PASSED_ON: Final = ("MONARCH_NB_COMPAT",)  # to every host


def _no_groups(ranks: Sequence[int], _: str = "", __: float | None = None) -> NoReturn:
    raise RuntimeError(
        f"ranks {list(ranks)}: process groups are made on ranks of a mesh, not on the controller"
    )


class Runtime:
    """Messaging, actors, supervision and meshes of this process."""

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
    ) -> None:
        self.proc = Proc(
            process=process, agent=agent, controller=controller, run_dir=run_dir, config=config
        )
        self.mail = Mail(self.proc)
        self.hosting = Hosting(self.proc)
        self.buffers = Buffers(self.proc, self.hosting)
        self.exchange = Exchange(self.proc)
        self.supervision = Supervision(self.proc, self.hosting)
        self.meshes = Meshes(self.proc, self.hosting, self.supervision)
        self.handles = Handles(self.proc, self.supervision)
        self.healing = Healing(self.proc, self.supervision, self.handles)
        self.root = context.Instance(
            process=process,
            port=ROOT_PORT,
            name=name,
            class_name="root",
            point=point or Point(0, Extent([], [])),
            creator="",
            owner=(controller, ROOT_PORT),
        )
        self.root._proc_mesh = self.own_mesh
        self.supervision.on_root_failure = self._root_failed
        self._own: ProcsState | None = None
        self.group_of: Callable[[Sequence[int], str, float | None], Any] = _no_groups
        """The process group of some ranks of the mesh, of which this process is one; another for
        each owner, of which "" is everybody. At last its timeout in seconds, None: as it is."""
        self.seat: Seat | None = None
        """Which rank this process is; None on the controller."""
        self.at_close: list[Callable[[], None]] = []
        """Called when this process leaves the mesh, or its runtime ends."""
        self.landings: dict[int, Landing] = {}  # by agent: where workspaces were synced to
        before_wait.flush = self.proc.links.flush

    def root_tag(self) -> int:
        """The notebook cell on whose behalf the calling thread runs."""
        found = context.here.get()
        return self.root.tag if found is None else found.tag

    def _root_failed(self, failure: MeshFailure, seen: bool) -> None:
        """Of a rank: no actor owns what has failed, a cell or a thread has spawned it."""
        if not seen:
            sys.stderr.write(f"Unhandled failure on {self.root.name}: {failure.report()}\n")

    def start(
        self,
        handlers: Iterable[Serve] = (),
        after_interrupt: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Begin to receive what every process handles, and what `handlers` do.

        `after_interrupt` are called in order when calls to an actor of this process have been
        interrupted, in the inbox thread.
        """

        def on_interrupt(interrupt: actors.Interrupt, message: Message) -> None:
            self.hosting.on_interrupt(interrupt, message)
            for listener in after_interrupt:
                listener()

        logs.install()
        hosting, supervision = self.hosting, self.supervision
        self.proc.start([
            serve(actors.AwaitBoot, hosting.on_await_boot),
            serve(actors.SpawnActor, hosting.on_spawn),
            serve(actors.StopActor, hosting.on_stop),
            serve(actors.Interrupt, on_interrupt),
            serve(actors.Fence, hosting.returns.on_fence),
            serve(actors.Undelivered, hosting.returns.on_undelivered),
            serve(actors.ActorFailed, supervision.on_actor_failed),
            serve(agents.Exited, supervision.on_exited),
            serve(agents.Silent, supervision.on_silent),
            serve(agents.Heard, supervision.on_heard),
            serve(actors.Healed, self.handles.on_healed),
            serve(actors.OfferTensor, self.exchange.on_offer),
            serve(actors.ReadBuffer, self.buffers.on_read),
            serve(actors.WriteBuffer, self.buffers.on_write),
            serve(actors.DropBuffer, self.buffers.on_drop),
            *handlers,
        ])  # fmt: skip

    def own_mesh(self) -> ProcMesh:
        """`this_proc()`."""
        if self._own is None:
            self._own = ProcsState(
                [self.proc.agent],
                number=self.proc.id,
                name="this_proc",
                owner_port=ROOT_PORT,
                shape=Shape.unity(),
                processes=[self.proc.id],
                owned=True,
            )
        return ProcMesh(self._own, Shape.unity())

    # hosts; the client overrides what it can do more

    def local_agent(self) -> int:
        """The agent of this host."""
        return self.proc.agent

    def living_agent(self, agent: int) -> int:
        """Who looks after this agent's host now."""
        return agent

    def environment_changes(self, agent: int) -> Environment:  # noqa: ARG002  the client looks
        """What has changed in this process's environment since it became that of its ranks.

        Hosts that others have started, and ranks, keep theirs.
        """
        return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}

    def hosts_ready(self, agents: Sequence[int]) -> Future[bool]:
        """Done when the agents can spawn."""
        ready: Future[bool] = make(Future)

        def heard(_: int, answer: Here | Refused) -> None:
            if isinstance(answer, Refused):
                ready._set_exception(RuntimeError(f"attach failed: {answer.error}"))

        requests = dict.fromkeys(agents, Hello())
        Question(self.proc, requests, lambda: ready._set_result(True), heard)
        return ready

    def stop_hosts(self, agents: Sequence[int]) -> Future[None]:
        """End every process on these hosts."""
        return self._when_done(agents, StopAll(self.proc.config.exit_s))

    def shut_hosts(self, agents: Sequence[int]) -> Future[None]:
        """End these hosts."""
        return self._when_done(agents, Shutdown(self.proc.config.exit_s))

    def _when_done(self, agents: Sequence[int], request: Request[Done]) -> Future[None]:
        done: Future[None] = make(Future)
        Question(self.proc, dict.fromkeys(agents, request), lambda: done._set_result(None))
        return done

    def close(self, linger_s: float = 0.5) -> None:
        """End this process's part in the mesh."""
        for ending in self.at_close:
            ending()
        logs.uninstall()
        self.hosting.close()
        self.buffers.close()
        self.proc.close(linger_s)
