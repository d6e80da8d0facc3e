"""A rank's life: from its boot record to its exit.

Rule: the main thread belongs to cells and to the first sync actor, one at a time, in the order in
which they came; it is the thread that a SIGINT interrupts, and only while user code runs on it.
Everything else has threads of its own.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from monarch_nb import late
from monarch_nb.actors.hosting import RankHooks
from monarch_nb.actors.sync_driver import Task, WorkQueue
from monarch_nb.config import Config
from monarch_nb.core.points import point
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import OUTPUT_PORT, REPLY, Message
from monarch_nb.core.wire.messages import (
    actors,
    agents,
    cells,
    codec,
    debug,
    groups,
    keeping,
    status,
)
from monarch_nb.core.wire.messages.codec import Done, encode_output
from monarch_nb.data.record_log import output_log
from monarch_nb.meshes.process_groups import Membership, RankIdentity
from monarch_nb.process import current, interrupts, remote_errors
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Serve, serve
from monarch_nb.services.elastic import Elastic
from monarch_nb.services.metrics import recorder
from monarch_nb.services.runtime import Runtime
from monarch_nb.services.spmd import TorchrunPlace
from monarch_nb.worker.cells import sources
from monarch_nb.worker.cells.interrupts import replace_sleep
from monarch_nb.worker.cells.questions import QuestionService
from monarch_nb.worker.cells.queue import CellQueue
from monarch_nb.worker.cells.rank_mesh import RankMesh
from monarch_nb.worker.cells.shell import prepare_shell
from monarch_nb.worker.cells.unseen import UnseenCells
from monarch_nb.worker.cells.variables import Variables
from monarch_nb.worker.controller import Controller
from monarch_nb.worker.debug.channel import DebugChannel
from monarch_nb.worker.debug.dap import Dap
from monarch_nb.worker.debug.debugger import Debugger
from monarch_nb.worker.elastic import ElasticRank
from monarch_nb.worker.groups import flight_recorder
from monarch_nb.worker.groups.agreement import Agreement
from monarch_nb.worker.groups.collectives import CollectiveWaits
from monarch_nb.worker.groups.making import AxisGroups, DefaultGroup
from monarch_nb.worker.groups.meeting import rendezvous
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups
from monarch_nb.worker.groups.regroup import Regrouping
from monarch_nb.worker.groups.replaying import Replaying
from monarch_nb.worker.imports import when_imported
from monarch_nb.worker.output import progress
from monarch_nb.worker.output.comms import Comms
from monarch_nb.worker.output.descriptors import Descriptors
from monarch_nb.worker.output.metrics import MetricsPump
from monarch_nb.worker.output.stdio import install
from monarch_nb.worker.reloading import Workspaces
from monarch_nb.worker.status.board_writer import BoardWriter
from monarch_nb.worker.status.described import Describer
from monarch_nb.worker.status.details import Details, Pauses, write_stacks_on_signal
from monarch_nb.worker.status.tensor_views import TensorViews

COMPAT: Final = "MONARCH_NB_COMPAT"


def run(boot: dict[str, object]) -> int:
    """Be the rank that `boot` describes (see docs/protocol.md). Returns the exit code."""
    return Rank(boot).live()


def prepare() -> None:
    """Make what takes each rank time and is the same for all: in the zygote, once."""
    prepare_shell()
    codec.prepare(cells.CellOutcome, cells.Output)


class Rank:
    def __init__(self, boot: dict[str, Any]) -> None:
        self.boot = boot
        self.point = Point(boot["rank"], Extent(boot["labels"], boot["sizes"]))
        self.work: WorkQueue = queue.SimpleQueue()
        self._drains: list[Callable[[], None]] = []  # of what is printed
        queues: list[Callable[[], int]] = [self.work.qsize]
        self.board = BoardWriter(boot["board"], queues)
        self.runtime = self._new_runtime(queues)
        self.proc = self.runtime.proc
        self.groups = ProcessGroups(
            Place(boot["store"], boot["rank"], boot["world_size"]),
            self.board,
            self.proc,
            boot["owner"],
            self._paused_s,
            self._tell_of_groups,
            shares_gpus=boot["shares_gpus"],
        )
        self._axis_groups = AxisGroups(self.groups)
        self.runtime.supervision.on_exit.append(self.groups.deaths.on_exit)
        self.hosting = self.runtime.hosting
        self.pauses = Pauses(self.proc, self.board)
        unseen, again = UnseenCells(), Replaying(self.groups, self._flush_output)
        self.elastic = ElasticRank(self.proc, self.groups, self._axis_groups, again)
        self.controller = self._new_controller(unseen)
        self.metrics = MetricsPump(
            recorder,
            lambda tag, content: self._send(tag, "metrics", content=content),
            boot["world_size"],
        )
        self.cells = CellQueue(
            self.runtime,
            self.work,
            self._names(),
            self.controller,
            unseen,
            Descriptors(boot["board"]),
            self.groups,
            again,
            self.metrics.drain,
        )
        prompts: dict[int, DebugChannel] = {}
        self.dap = Dap(self.hosting, self.board, self.cells, prompts)
        self.debugger = Debugger(self.hosting, self.board, self.dap, prompts)
        self.regrouping = Regrouping(self.cells, self.groups)
        self.agreement = Agreement(self.cells, self.groups, self._turn_of, self._is_at_rest)
        self.comms = Comms(self.runtime, self.work, self.cells, self.controller)
        self._leaving = False

    def _new_runtime(self, queues: list[Callable[[], int]]) -> Runtime:
        boot = self.boot
        return Runtime(
            process=boot["proc"],
            agent=boot["agent"],
            controller=boot["controller"],
            run_dir=Path(boot["run_dir"]),
            config=Config(**boot["config"]),
            point=self.point,
            name=f"{boot['name']}[{boot['rank']}]",
            hooks=RankHooks(
                board=self.board,
                queues=queues,
                main_queue=self.work,
                interrupt_main=partial(interrupts.interrupt_main, self._end_wait),
                flush_output=self._flush_output,
            ),
            membership=Membership(self._identity(), self._group_of),
            elastic=Elastic(lambda: self.elastic.new_loop()),  # noqa: PLW0108  it is made later
        )

    def _new_controller(self, unseen: UnseenCells) -> Controller:
        log = output_log(self.proc.links.run_dir, self.proc.id)
        errors = self.hosting.recent_errors
        made = Controller(self.proc, self.runtime.supervision, log, unseen, errors)
        made.on_change += self._belong_to, self.hosting.belong_to
        made.on_change.append(lambda _old, _new: self.metrics.begin_anew())
        return made

    def _belong_to(self, old: int, controller: int) -> None:
        if self.boot["owner"] == old:
            self.boot["owner"] = controller
            self.groups.belong_to(controller)
        self.groups.tell_again()

    def _paused_s(self, within_s: float) -> float:
        return self.pauses.of_mesh_s(within_s)

    def _tell_of_groups(self, left: bool) -> None:
        self.proc.control(self.proc.controller, groups.OutOfStep(self.boot["mesh"], left))

    def _end_wait(self) -> bool:
        return self.groups.interrupted()

    def _group_of(
        self, ranks: Sequence[int], owner: str = "", timeout: float | None = None
    ) -> object:
        return self._axis_groups.of(ranks, owner, timeout)

    def live(self) -> int:
        current.install(self.runtime)
        self._prepare_environment()
        if os.environ.get(COMPAT, "0") not in {"", "0"}:
            late.load(late.COMPAT)
        self._attach_main_thread()
        self.runtime.start(self._handlers(), after_interrupt=(self.dap.leave_post_mortem,))
        point("rank.started")
        self._boot_user_code()
        self._serve()
        self._leave()
        return 0

    # boot

    def _prepare_environment(self) -> None:
        rank, boot = self.boot["rank"], self.boot
        host, local_rank = divmod(rank, boot["host_size"])
        place = TorchrunPlace(rank, boot["world_size"], local_rank, boot["host_size"], host)
        os.environ.update(place.environment())
        rendezvous.prepare_environment(boot["interface"], boot["network"])

    def _names(self) -> dict[str, object]:
        return {
            "rank": self.boot["rank"],
            "world_size": self.boot["world_size"],
            "size": self.boot["world_size"],
            "local_rank": self.boot["rank"] % self.boot["host_size"],
            "coords": dict(self.point),
            "device": self.boot["device"] or "cpu",
            "mesh": RankMesh(self._identity()),
        }

    def _identity(self) -> RankIdentity:
        boot = self.boot
        shape = self.point.extent.region.as_shape()
        device = boot["device"] or "cpu"
        return RankIdentity(boot["mesh"], boot["name"], self.point.rank, shape, device)

    def _attach_main_thread(self) -> None:
        signal.signal(signal.SIGINT, self._on_sigint)
        interrupts.allow_wakeups()
        replace_sleep()
        write_stacks_on_signal(Path(self.boot["run_dir"]), self.proc.id)
        streams = install(self.runtime.root_tag, self._send, self.controller.window)
        bars = progress.install(
            self.runtime.root_tag,
            lambda tag, bars: self._send(tag, "progress", content={"bars": bars}),
        )
        self._drains += streams.drain, bars.drain
        has_torch = "torch" in sys.modules
        when_imported({"torch": self._prepare_torch if has_torch else self._torch_imported})
        self.hosting.on_raised.append(self.dap.uncaught)
        self.dap.install()
        self.debugger.install()
        sources.install(self.proc)
        self.comms.install()

    def _prepare_torch(self, torch: ModuleType) -> None:
        torch.default_generator.seed()  # else all ranks that import it draw the same numbers
        rendezvous.install(self.groups)
        CollectiveWaits(self.groups).install()
        DefaultGroup(self.groups).install()

    def _torch_imported(self, torch: ModuleType) -> None:
        self._prepare_torch(torch)
        self.proc.control(self.proc.agent, agents.LoadLibraries([torch.__name__]))  # for others

    def _handlers(self) -> list[Serve]:
        details = Details(self.hosting, self.cells)
        variables = Variables(self.proc, self.cells)
        helper = self.cells.shell.helper
        typing = QuestionService(
            self.proc,
            {
                cells.Complete: helper.complete,
                cells.Inspect: lambda asked: helper.inspect(asked, self._is_busy()),
            },
        )
        collectives = QuestionService(
            self.proc,
            {status.GetCollectives: lambda _: flight_recorder.report(self.groups.timeouts)},
        )
        standings = QuestionService(self.proc, {groups.GetStandings: self.agreement.standings})
        return [
            serve(agents.Leave, self._on_exit),
            serve(actors.Regroup, self._on_regroup),
            serve(actors.SetLogLevel, self._on_logging),
            serve(actors.WorkspaceSynced, Workspaces(self.proc, self.work).on_workspace),
            serve(keeping.LogOutput, self.controller.on_log_output),
            serve(keeping.ControllerGone, self.controller.on_gone),
            serve(keeping.TakeControl, self.controller.on_take),
            serve(keeping.ResumeCell, self.cells.on_resume),
            serve(keeping.CellsTaken, self.cells.on_taken),
            serve(keeping.AskAgain, lambda _asked, _: self.debugger.ask_again(self.controller.tag)),
            serve(cells.RunCell, self.cells.on_cell),
            serve(cells.InterruptCell, self.cells.on_interrupt),
            serve(cells.GetVariable, variables.on_get),
            serve(cells.SetVariables, variables.on_set),
            serve(cells.GetResult, variables.on_get_result),
            serve(cells.DropResult, variables.on_drop_result),
            serve(cells.Complete, typing.on_request),
            serve(cells.Inspect, typing.on_request),
            serve(cells.OutputTaken, lambda taken, _: self.controller.window.take(taken.chars)),
            serve(cells.MetricsTaken, lambda _message, _frame: self.metrics.on_taken()),
            serve(cells.WidgetMessage, self.comms.on_message),
            serve(status.GetDetails, details.on_details),
            serve(status.GetStacks, details.on_stacks),
            serve(status.GetCollectives, collectives.on_request),
            serve(status.GetHeldSpans, self.pauses.on_paused),
            serve(status.LeaveGroups, self.regrouping.on_leave),
            serve(status.MeetAgain, self.regrouping.on_meet),
            serve(groups.GetStandings, standings.on_request),
            serve(groups.EndWait, self.agreement.on_end),
            serve(groups.RefuseGroups, self.agreement.on_refuse),
            serve(groups.MakeAgain, self.agreement.on_again),
            serve(debug.DebugInput, self.debugger.on_input),
            serve(debug.OpenPostMortem, self.debugger.on_post_mortem),
            serve(debug.StopAtFailure, self.debugger.on_stop_at_failure),
            serve(debug.ForgetFailed, self.debugger.on_forget_failed),
            serve(debug.OpenDap, self.dap.on_open),
            serve(debug.DapRequest, self.dap.on_request),
            serve(debug.CloseDap, self.dap.on_close),
            *self._handlers_of_variables(),
            *self._handlers_of_tests(),
        ]

    def _handlers_of_variables(self) -> list[Serve]:
        describer = Describer(lambda: self.cells.shell.namespace, frozenset(self._names()))
        described = QuestionService(self.proc, {status.ListVariables: describer.all})
        views = TensorViews(lambda: self.cells.shell.namespace)
        shown = QuestionService(
            self.proc, {status.GetWindow: views.window, status.GetPicture: views.picture}
        )
        return [
            serve(status.ListVariables, described.on_request),
            serve(status.GetWindow, shown.on_request),
            serve(status.GetPicture, shown.on_request),
        ]

    def _handlers_of_tests(self) -> list[Serve]:
        if not self.proc.config.testing:
            return []
        found: list[Serve] = late.load(late.FAULTS).handlers_of_rank(self.proc)
        return found

    def _is_busy(self) -> bool:
        drivers = list(self.hosting.drivers.values())
        return bool(self.cells.what) or any(driver.running is not None for driver in drivers)

    def _is_at_rest(self) -> bool:
        drivers = list(self.hosting.drivers.values())
        waiting = self.cells.waiting or any(driver.queue for driver in drivers)
        return not (waiting or self._is_busy() or any(driver.current for driver in drivers))

    def _turn_of(self, thread: int) -> tuple[int, int]:
        # who is answered by what it does
        if thread == threading.main_thread().ident and (turn := self.cells.turn) is not None:
            return turn
        drivers = list(self.hosting.drivers.values())
        running = [each.interrupts for each in drivers if each.interrupts.thread == thread]
        return next((each.running for each in running if each.running is not None), (0, 0))

    def _on_sigint(self, *_: object) -> None:
        self.dap.interrupted()
        drivers = list(self.hosting.drivers.values())
        mine = [driver for driver in drivers if getattr(driver, "on_main", False)]
        hits = {driver.interrupts.hit() for driver in mine}
        if True in hits:
            raise KeyboardInterrupt
        if False in hits or self.cells.shell.interrupt():
            return
        if any(driver.running is not None for driver in mine):
            raise KeyboardInterrupt

    def _boot_user_code(self) -> None:
        error: BaseException | None = None
        if self.boot["bootstrap"] is not None:
            try:
                _run_bootstrap(base64.b64decode(self.boot["bootstrap"]))
            except BaseException as failed:  # noqa: BLE001  told to the owner
                error = failed
        if self.proc.links.forked:
            current.end_fork(error)
        self.board.ready()  # before anybody is told, who then looks, and before actors run
        self.hosting.booted(error)
        payload = os.getpid().to_bytes(8, "little")
        buffers = [] if error is None else [remote_errors.pack(remote_errors.RAISED, error)]
        self.proc.send(
            self.boot["owner"], REPLY, self.boot["ready_port"], Payload(payload, buffers)
        )

    # life

    def _serve(self) -> None:
        get = self.work.get
        while not self._leaving:
            try:
                while (item := get()) is not None:
                    item[0].step(item[1])
                break
            except KeyboardInterrupt:
                continue  # came after the user's code had ended

    def _on_exit(self, leave: agents.Leave, _: Message) -> None:
        if self._leaving:
            return
        self._leaving = True
        limit_s = leave.grace_s or self.proc.config.exit_s
        threading.Thread(
            target=self._end_actors, args=(limit_s,), name="monarch-exit", daemon=True
        ).start()

    def _end_actors(self, limit_s: float) -> None:
        # Stop the actors in an orderly way; whatever hangs is interrupted, then left behind
        self.dap.close("the rank ends")
        drivers = list(self.hosting.drivers.values())
        for driver in drivers:
            driver.request_stop(None, "its process was stopped")
        deadline = time.monotonic() + min(limit_s, self.proc.config.cleanup_s) * 0.5
        for driver in drivers:
            driver.wait_until_over(max(0.0, deadline - time.monotonic()))
        self.hosting.interrupt_all()
        self.cells.interrupt()
        self.work.put(None)
        # the main thread leaves now, unless user code holds it; the agent kills what stays

    def _leave(self) -> None:
        self._flush()
        self.cells.shell.close()
        self.runtime.close(linger_s=0.5)

    def _flush(self) -> None:
        self.cells.before_answer()
        self._flush_output()

    # output

    def _flush_output(self) -> None:
        for drain in self._drains:
            drain()

    def _send(
        self,
        tag: int,
        stream: str,
        text: str = "",
        content: dict[str, object] | None = None,
        blocks: list[tuple[int, int]] | None = None,
    ) -> None:
        if self.groups.is_alone:
            return
        output = cells.Output(self.boot["mesh"], self.boot["rank"], stream, text, content, blocks)
        payload = self.proc.encode_bytes(encode_output(output))
        self.controller.send_output(OUTPUT_PORT, payload, tag)

    # requests of the owner

    def _on_regroup(self, place: actors.Regroup, message: Message) -> None:
        if place.keeps_groups:
            self.groups.move(place.store, place.rank, place.world_size)
            self.proc.answer(message, Done())
            return

        def regroup() -> None:
            try:
                self._regroup(place)
            except Exception:  # noqa: BLE001  the old group may be broken in any way
                self.hosting.log_exception("leaving the process group before a heal raised")
            self.proc.answer(message, Done())

        self.work.put((Task(regroup), None))

    def _regroup(self, place: actors.Regroup) -> None:
        # The mesh was healed, shrunk or resized: who this rank is now. Main thread.
        self.regrouping.before_heal()
        rank, size = place.rank, place.world_size
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size)})
        self.point = Point(rank, Extent(place.labels, place.sizes))
        self.runtime.root.move_to(self.point)
        if place.spans_hosts and not self.boot["spans_hosts"]:
            rendezvous.use_network(self.boot["network"], self.boot["interface"])
        spans = self.boot["spans_hosts"] or place.spans_hosts
        self.boot.update(rank=rank, world_size=size, spans_hosts=spans)
        self.runtime.membership.become(self._identity())
        self.cells.shell.give(self._names())
        self.regrouping.heal(place.store, rank, size)

    def _on_logging(self, wanted: actors.SetLogLevel, _: Message) -> None:
        logging.basicConfig()  # a handler, if the user's code has made none
        logging.getLogger().setLevel(wanted.level)


def _run_bootstrap(payload: bytes) -> None:
    result = pickling.loads(payload)()
    if inspect.isawaitable(result):
        asyncio.run(_await(result))


async def _await(awaitable: Awaitable[object]) -> None:
    await awaitable
