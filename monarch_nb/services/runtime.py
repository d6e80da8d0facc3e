"""`Runtime`: the parts of one process put together. A client and a rank differ in who starts it and
in its root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from monarch_nb.actors.hosting import Hosting
from monarch_nb.config import Config
from monarch_nb.core.shape.extent import Extent, Point, Shape
from monarch_nb.core.wire.frames import ROOT_PORT
from monarch_nb.meshes.bootstrap import Environment
from monarch_nb.meshes.healing import Healing
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.process_groups import Seat
from monarch_nb.meshes.spawning import Meshes
from monarch_nb.process import context
from monarch_nb.process.futures.future import Future, before_wait, make
from monarch_nb.process.payloads import Parcel
from monarch_nb.process.process import Proc
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

    def start(self) -> None:
        """Begin to receive."""
        logs.install()
        self.proc.links.start()

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

    def request_spawn(
        self,
        agent: int,
        body: dict[str, Any],
        bootstrap: Parcel | None,
        refused: Callable[[str], None],
    ) -> None:
        """Ask an agent for ranks; `refused(text)` if it says no or is gone."""

        def answered(answer: dict[str, Any]) -> None:
            if "error" in answer:
                refused(answer["error"])

        self.proc.ask(agent, "spawn", body, answered, parcel=bootstrap)

    def hosts_ready(self, agents: Sequence[int]) -> Future[bool]:
        """Done when the agents can spawn."""
        return self._ask_all(agents, "hello", {}, True)

    def stop_hosts(self, agents: Sequence[int]) -> Future[None]:
        """End every process on these hosts."""
        return self._ask_all(agents, "stop_all", {"grace_s": self.proc.config.exit_s}, None)

    def shut_hosts(self, agents: Sequence[int]) -> Future[None]:
        """End these hosts."""
        return self._ask_all(agents, "shutdown", {"grace_s": self.proc.config.exit_s}, None)

    def _ask_all(
        self, agents: Sequence[int], verb: str, body: dict[str, Any], value: Any
    ) -> Future[Any]:
        future: Future[Any] = make(Future)
        left = [len(agents)]

        def answered(answer: dict[str, Any]) -> None:
            left[0] -= 1
            if "error" in answer and verb == "hello":
                future._set_exception(RuntimeError(f"attach failed: {answer['error']}"))
            elif left[0] == 0:
                future._set_result(value)

        for agent in agents:
            self.proc.ask(agent, verb, body, answered)
        return future

    def close(self, linger_s: float = 0.5) -> None:
        """End this process's part in the mesh."""
        for ending in self.at_close:
            ending()
        logs.uninstall()
        self.hosting.close()
        self.buffers.close()
        self.proc.close(linger_s)
