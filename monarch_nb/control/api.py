"""What a notebook asks of the controller: the one way from `notebook` down.

Rule of the file: a kernel imports it at its start, so it loads no more than that start needs. What
the first mesh needs (the client, meshes, pickling of tensors) is imported by the methods, at their
first use or by `prewarm`; the notebook has no such imports of its own. Tests put a `FakeControl` of
the same shape in the place of `Control`.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from monarch_nb.control import started
from monarch_nb.control.hangs import stacks
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.errors import LaunchError

if TYPE_CHECKING:
    from monarch_nb.control.cell_history import PastCell
    from monarch_nb.control.cells import CellRun
    from monarch_nb.control.client import Client
    from monarch_nb.control.debug.sessions import Key
    from monarch_nb.control.doctor import Finding
    from monarch_nb.control.elastic.loops import Mended
    from monarch_nb.control.engines import Wanted
    from monarch_nb.control.hangs.collectives import Regrouped, Seen, Xray
    from monarch_nb.control.hosts.listing import ListedHost
    from monarch_nb.control.jobs.job import JobTrait
    from monarch_nb.control.jobs.status import JobStatus
    from monarch_nb.control.keeping.adoption import Found, LeftCell, LeftFailure, LeftPart
    from monarch_nb.control.keeping.kept_record import KeptMesh, KeptRecord
    from monarch_nb.control.keeping.returning import Left
    from monarch_nb.control.output.comms import CommEvent
    from monarch_nb.control.output.logbook import Logbook
    from monarch_nb.control.output.routing import OutputEvent
    from monarch_nb.control.status.snapshots import MeshStatus, RankStatus
    from monarch_nb.core.hangs.stack_tree import Stack
    from monarch_nb.core.wire.messages.cells import CellOutcome, Script
    from monarch_nb.core.wire.messages.codec import Refused, Request
    from monarch_nb.core.wire.messages.status import RankDetails
    from monarch_nb.meshes.actor_mesh import ActorMesh
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Wait
    from monarch_nb.process.supervision.supervision import MeshFailure

__all__ = [  # types too, for annotations of the notebook
    "HOST_MESH", "RANK_MESHES", "ActorMesh", "CellOutcome", "CellRun", "Client", "CommEvent",
    "Control", "Found", "JobStatus", "JobTrait", "KeptMesh", "KeptRecord", "Left", "LeftCell",
    "LeftFailure", "LeftPart", "ListedHost", "Logbook", "Mended", "MeshFailure", "MeshStatus",
    "OutputEvent", "PastCell", "ProcMesh", "RankStatus", "Regrouped", "Script", "Seen",
    "Stack", "Wait", "Wanted", "Xray",
]  # fmt: skip

A = TypeVar("A")
T = TypeVar("T")

RANK_MESHES = (
    ("monarch_nb.meshes.proc_mesh", "ProcMesh"),
    ("monarch_nb.meshes.actor_mesh", "ActorMesh"),
)
"""Classes of meshes that have ranks, by module and name: IPython can show them unimported."""
HOST_MESH = ("monarch_nb.meshes.proc_mesh", "HostMesh")


class Control:
    """The controller of this process.

    Methods that take `ranks` count them in the whole mesh, also where the mesh is a slice.
    """

    def __init__(self) -> None:
        self._prewarming: threading.Thread | None = None
        self._is_over = threading.Event()

    # ----------------------------------------------------------------------------- the client

    def running_client(self) -> Client | None:
        """Return the client, if anything has started it."""
        module = sys.modules.get("monarch_nb.control.client")
        running = getattr(module, "running_client", None)  # `prewarm` may be importing it
        found: Client | None = running() if running else None
        return found

    def logbook(self) -> Logbook | None:
        """Return the logs of ranks, if anything has started the client."""
        client = self.running_client()
        return None if client is None else client.output.logbook

    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when a client starts: the cell that starts it is heard from its first line.

        Returns what takes the callback back.
        """
        return started.when_started(callback)

    def prewarm(self) -> None:
        """Start what the first mesh needs, in the background: it is to come up at once. Nothing
        where a kept mesh waits for a kernel, as it has all that."""
        self._prewarming = threading.Thread(
            target=_prewarm, args=(self._is_over,), name="monarch-prewarm", daemon=True
        )
        self._prewarming.start()

    def end_prewarm(self, timeout_s: float) -> None:
        """Finish what the background has begun, so that it can be ended: the kernel ends."""
        self._is_over.set()
        if self._prewarming is not None:
            self._prewarming.join(timeout_s)

    def beside_cells(self, run: Callable[[], T]) -> T:
        """Run this on behalf of no cell: the stop button of a cell does not reach its calls, and
        their output is not that of the running cell."""
        return _client().run_untagged(run)

    # --------------------------------------------------------------------------------- meshes

    def spawn(self, sizes: Mapping[str, int], name: str, device: str = "auto") -> ProcMesh:
        """Start ranks on this host; does not wait for them. `device`: see `control.hosts.gpus`.

        Raises `ValueError` where GPUs are wanted and there is none.
        """
        from monarch_nb.control.hosts import gpus
        from monarch_nb.meshes.proc_mesh import this_host

        gpus.check_here(device)
        command = gpus.command_for(device)
        return this_host().spawn_procs(per_host=dict(sizes), name=name, bootstrap_command=command)

    def job(self, name: str, wanted: Wanted) -> JobTrait:
        """Return a job for these hosts, as a mesh of this name; nothing is asked for yet.

        Raises `ValueError` where the engine cannot give such hosts, or is not installed.
        """
        from monarch_nb.control import engines

        return engines.make(name, wanted)

    def spawn_on(
        self, job: JobTrait, name: str, sizes: Mapping[str, int], device: str = "auto"
    ) -> ProcMesh:
        """Start ranks on the hosts of a job, once these are there. `device` as in `spawn`.

        Raises `LaunchError` and `RuntimeError` with the words of the engine where one cannot be.
        """
        from monarch_nb.control.hosts import gpus

        command = gpus.command_for(device)
        hosts = getattr(job.state(cached_path=None), name)
        hosts.initialized.get()
        mesh: ProcMesh = hosts.spawn_procs(
            per_host=dict(sizes), name=name, bootstrap_command=command
        )
        return mesh

    def resized(self, job: JobTrait, mesh: ProcMesh, hosts: int) -> ProcMesh:
        """Have a mesh on so many hosts of its job; does not wait for new ranks. Waits for those
        that end. Raises as `ProcMesh.resize`."""
        there = getattr(job.state(cached_path=None), mesh.name)
        return mesh.resize(there.slice(hosts=slice(hosts)))

    def host_of(self, mesh: ProcMesh, rank: int) -> int:
        """Return the number of the host on which a rank is, for `JobTrait.shell_command`."""
        return mesh._state.agents[rank] >> HOST_SHIFT

    def hosts(self) -> Sequence[ListedHost]:
        """Return the hosts that have joined this controller, or are to; none for its own."""
        client = self.running_client()
        return () if client is None else client.hosts_listed()

    def revoke_host(self, wanted: str) -> ListedHost:
        """Have a host no more, by its name or number, and return it: its ranks end. Raises
        `ValueError` where none is called so."""
        from monarch_nb.control.hosts.listing import to_revoke

        found = to_revoke(list(self.hosts()), wanted)
        _client().revoke_host(found.number)
        return found

    def run_on_host(self, mesh: ProcMesh, rank: int, command: Sequence[str]) -> int:
        """Run a command on the host of a rank and return its exit code; what it writes comes as
        output of ranks does. Waits for it."""
        from monarch_nb.services.commands import exec_command

        place = self.whole(mesh).flatten("rank").slice(rank=rank).host_mesh
        return exec_command(place, command).get()

    def doctor(self, mesh: ProcMesh | None) -> Iterable[Finding]:
        """Look at this machine and at the hosts of a mesh. Waits for its ranks."""
        from monarch_nb.control import doctor

        return doctor.examine(mesh)

    def find(self, name: str) -> ProcMesh | None:
        """Return the mesh of processes of this name that is up, whole; None if there is none."""
        client = self.running_client()
        if client is None:
            return None
        states = list(client.supervision.states.values())
        found = [each for each in states if each.kind == "proc" and each.name == name]
        living = [each for each in found if each.ended is None]
        mesh: ProcMesh | None = living[-1].view() if living else None
        return mesh

    def is_mesh(self, value: object) -> TypeGuard[ProcMesh]:
        """Return whether the value is a mesh of processes, on which cells can run."""
        module = sys.modules.get("monarch_nb.meshes.proc_mesh")
        wanted = getattr(module, "ProcMesh", ())  # `prewarm` may be importing it
        return issubclass(type(value), wanted)  # `isinstance` would ask the user's own `__class__`

    def is_stopped(self, mesh: ProcMesh | ActorMesh[Any]) -> bool:
        """Return whether the mesh was stopped."""
        return mesh._state.ended is not None

    def home(self, mesh: ProcMesh | ActorMesh[Any]) -> tuple[str, Sequence[int]] | None:
        """Return the process mesh that actors live on, and their ranks there; None for others."""
        from monarch_nb.meshes.states import ActorsState

        state = mesh._state
        if not isinstance(state, ActorsState) or state.procs is None:
            return None
        return state.procs.name, [state.proc_ranks[rank] for rank in mesh.ranks]

    def whole(self, mesh: ProcMesh) -> ProcMesh:
        """Return the mesh that this is, or is a slice of."""
        return mesh if len(mesh) == len(mesh._state.processes) else mesh._state.view()

    def lost(self, mesh: ProcMesh) -> Sequence[int]:
        """Return the ranks of it that are lost and not healed."""
        return [rank for rank in mesh.ranks if rank in mesh._state.lost]

    def moves(self, mesh: ProcMesh) -> Sequence[str]:
        """Say which ranks the last heal has started on other hosts than before."""
        return mesh._state.moves

    def refused(self, mesh: ProcMesh) -> str | None:
        """Return why the host has started none of its ranks, if that is so."""
        failures = mesh._state.lost.values()
        ends = [each.ended for each in failures if each.ended is not None]
        reasons = {each.reason for each in ends if each.code is None and each.signal is None}
        return reasons.pop() if len(ends) == len(mesh) and len(reasons) == 1 else None

    def processes(self, mesh: ProcMesh, ranks: Iterable[int]) -> Sequence[int]:
        """Return the ids of these ranks' processes, which no others will ever have."""
        return [mesh._state.processes[rank] for rank in ranks]

    # ---------------------------------------------------------------------------- kept meshes

    def keep(
        self, mesh: ProcMesh, for_s: float, job: tuple[JobTrait, Wanted] | None = None
    ) -> None:
        """Let a mesh go on for so long when this process has gone; `job` has its hosts, if they are
        those of one. Waits for the hosts. Raises `LaunchError` where it cannot."""
        from monarch_nb.control.keeping.keeper import MeshJob

        found = None if job is None else MeshJob(job[0], list(job[1]))
        _client().keeper.keep([mesh._state], for_s, found)

    def found_job(self, record: KeptRecord, mesh: ProcMesh) -> tuple[JobTrait, Wanted] | None:
        """Return the job that has the hosts of a mesh which was adopted, and what was asked for;
        None where its ranks are of this machine."""
        from monarch_nb.control import engines
        from monarch_nb.control.keeping.keeper import MeshJob

        for name, said, state in () if record.hosts is None else record.hosts.jobs:
            if name == mesh.name:
                wanted = engines.Wanted.from_json(said)
                job = engines.make(name, wanted)
                job.go_on(state)
                _client().keeper.has_job(mesh._state, MeshJob(job, said))
                return job, wanted
        return None

    def kept_for(self, mesh: ProcMesh) -> float | None:
        """Return for how long a mesh goes on when this process has gone; None: it ends."""
        client = self.running_client()
        if client is None or not client.keeper.keeps(mesh._state):
            return None
        return client.keeper.for_s

    def not_driven(self, mesh: ProcMesh | ActorMesh[Any]) -> str | None:
        """Return why a mesh cannot be used, where another kernel drives it; else None."""
        return mesh._state.only_seen

    def leave(self, mesh: ProcMesh) -> None:
        """Forget a mesh that another kernel drives, and look at it no more."""
        client = _client()
        if client.looks:
            client.shutdown(0)
        else:
            mesh._state.end("another notebook drives it")

    def kept_meshes(self) -> Sequence[KeptRecord]:
        """Return the meshes of this user on this host that go on without their kernel, or would;
        not those that this process drives, unless it has lost hosts of theirs."""
        from monarch_nb.control.keeping import kept_record

        client, records = self.running_client(), kept_record.all_records()
        return [each for each in records if client is None or not _drives(client, each)]

    def left(self, record: KeptRecord) -> Left:
        """Return what the ranks of a record do that nobody drives. Waits for hosts, 2 s at most.
        Raises `LaunchError` where they cannot be asked."""
        from monarch_nb.control.keeping import returning
        from monarch_nb.host.status import alone

        if record.hosts is not None:
            return returning.look_in(record.hosts)
        note = alone.read(Path(record.run_dir))
        return returning.Left([] if note is None else [note], [])

    def end_kept(self, record: KeptRecord) -> None:
        """End the meshes of a record, with all that their ranks hold. Returns at once for those of
        this host; of others waits for the hosts to hear it. Raises `LaunchError` where some have
        not: they end when their time is over."""
        if record.hosts is not None:
            from monarch_nb.control.keeping import returning

            missing = returning.end(record.hosts)
            if missing:
                names = ", ".join(missing)
                raise LaunchError(
                    f"{names} did not hear it: what runs there ends when its time is over"
                )
        record.end()

    def adopt(self, record: KeptRecord, *, who: str, fence: bool) -> Found:
        """Drive the meshes of a record from now on; `who` is told to whom it takes them from.

        Raises `DrivenError` without `fence` where another kernel drives them, `LaunchError` where
        they are gone, `RuntimeError` where this kernel has meshes of its own.
        """
        from monarch_nb.control.keeping import adoption

        return adoption.take_over(record, who=who, fence=fence)

    def look_at(
        self, record: KeptRecord, tag: int, tell: Callable[[str], None]
    ) -> Sequence[ProcMesh]:
        """Look at the meshes of a record, whoever drives them: nothing else can be done with them.
        What their ranks print is shown for the cell `tag`; `tell` is called with a line on each of
        which nothing is seen any more, in any thread. Raises as `adopt`, but for `DrivenError`."""
        from monarch_nb.control.keeping import looking

        return looking.look_at(record, tag, tell)

    def resume(self, left: LeftPart, *, tag: int) -> CellRun:
        """Have a cell be answered here that an earlier kernel has left on its ranks."""
        from monarch_nb.control import cells

        return cells.resume(left, tag)

    def recall(self, found: Found, tags: Mapping[int, int]) -> None:
        """Hand on what ranks have printed before they were adopted; that of cells with these tags
        is shown under the ones that they have here. Waits for the disk."""
        from monarch_nb.control.keeping import adoption

        adoption.recall(_client(), found, tags)

    # -------------------------------------------------------------------- ranks, busy or stuck

    def interrupt(self, mesh: ProcMesh, ranks: Iterable[int] | None = None) -> bool:
        """Interrupt the cells and calls that these ranks, or all of this slice, owe an answer to.
        Returns at once; whether there were any."""
        client, wanted = self.running_client(), mesh.ranks if ranks is None else ranks
        return client is not None and client.interrupt_processes(self.processes(mesh, wanted))

    def kill(self, mesh: ProcMesh, ranks: Iterable[int]) -> None:
        """End the processes of these ranks. Returns at once."""
        mesh._state.check_driven()
        stacks.kill(_client().proc, mesh._state, ranks)

    def signal(self, mesh: ProcMesh, ranks: Iterable[int]) -> None:
        """Interrupt ranks that do not read their messages. Returns at once."""
        mesh._state.check_driven()
        stacks.interrupt(_client().proc, mesh._state, ranks)

    def stacks(
        self, mesh: ProcMesh, ranks: Collection[int], *, brief: bool = False
    ) -> Mapping[int, Sequence[Stack]]:
        """Return where all threads of these ranks are in code of the user's, the main thread first;
        of those that can be seen, within a third of a second where it is to be `brief`."""
        limit_s = stacks.BRIEF_S if brief else stacks.LIMIT_S
        return stacks.look(_client().proc, mesh._state, ranks, limit_s)

    def xray(self) -> Xray | None:
        """Return what looks into hanging ranks, if anything has started the client."""
        from monarch_nb.control.hangs import collectives

        client = self.running_client()
        return None if client is None else collectives.Xray(client.proc, client.supervision)

    def settle_groups(self, mesh: ProcMesh) -> None:
        """Get ranks in step again in process groups that an earlier cell or call has left; who
        listens to the client is told what was done. Waits for the ranks."""
        _client().agreements.settle(mesh._state)

    def actors_of(
        self, mesh: ProcMesh, ranks: Iterable[int], timeout_s: float
    ) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        """Return what the actors on these ranks have done, of ranks that tell it in time."""
        from monarch_nb.control.status import details

        rank_of = {self.processes(mesh, [rank])[0]: rank for rank in ranks}
        told = _details(rank_of, timeout_s)
        return {rank_of[process]: details.actors_of(each) for process, each in told.items()}

    def actor_totals(
        self, mesh: ProcMesh, ranks: Iterable[int], timeout_s: float
    ) -> Sequence[Mapping[str, Any]]:
        """Add up what the actors on these ranks have done, of ranks that answer in time."""
        from monarch_nb.control.status import details

        told = _details(self.processes(mesh, ranks), timeout_s)
        return details.actor_totals(mesh._state, told)

    # --------------------------------------------------------------------- frames of failures

    def open_failed(self, processes: Iterable[int] | None, tag: int | None = None) -> list[Key]:
        """Let these processes, or all, stand in the frames of their last failure, or of the last
        for a notebook cell. The debuggers there; of a process that keeps nothing, none."""
        client = self.running_client()
        if client is None:
            return []
        wanted = client.post_mortem.living() if processes is None else processes
        return client.post_mortem.open_failed(wanted, tag)

    def stop_at_failure(self, processes: Iterable[int], *, on: bool) -> None:
        """Have ranks stop where their code fails, or no longer."""
        _client().post_mortem.stop_at_failure(processes, on=on)

    def forget_failed(self, processes: Iterable[int]) -> None:
        """Have ranks let go of the frames of their failures, and of what these hold."""
        _client().post_mortem.forget_failed(processes)

    # ---------------------------------------------------------------------- cells and variables

    def help(
        self,
        mesh: ProcMesh,
        rank: int,
        request: Request[A],
        timeout_s: float,
        late: Callable[[A | Refused], None],
    ) -> A | Refused | None:
        """Ask a rank about its names; None after `timeout_s`, and `late` gets what comes then."""
        client = self.running_client()
        if client is None:
            return None
        from monarch_nb.control.cells import ask

        return ask(client.proc, mesh, rank, request, timeout_s, late)

    def run_cell(
        self,
        mesh: ProcMesh,
        code: str,
        *,
        filename: str,
        first_line: int,
        tag: int,
        keep: bool,
        what: str,
        fail_fast: bool = True,
    ) -> CellRun:
        """Submit the code to every rank of the mesh and return at once.

        With `keep` the ranks keep the value of its last expression for whoever has the run. `what`
        is what views call it. `fail_fast`: see `CellRun.free_waiting`.
        """
        from monarch_nb.control import cells

        return cells.run_cell(
            mesh,
            code,
            filename=filename,
            first_line=first_line,
            tag=tag,
            keep=keep,
            what=what,
            fail_fast=fail_fast,
        )

    def variables(
        self, mesh: ProcMesh, ranks: Collection[int] | None, contents: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return what the variables of ranks are, also of busy ones: `{"variables", "left_out",
        "no_answer", ...}` as in docs/terminal.md. No code of the user's runs for it. Of those that
        `contents` names, ranks summarize what is in them."""
        from monarch_nb.control.inspection import variables

        return variables.of_mesh(_client().proc, mesh._state, ranks, contents)

    def past_cells(self, mesh: ProcMesh) -> Sequence[PastCell]:
        """Return the cells that ranks of a mesh have run, in order, and who lacks each: ranks that
        were started again since."""
        state = mesh._state
        return _client().history.past(state.number, state.processes)

    def script(
        self, parts: Sequence[ProcMesh], name: str, args: Sequence[str], module: bool
    ) -> Script:
        """Prepare a run of a script, or of a module, whose world is these parts of a mesh."""
        from monarch_nb.control import cells

        return cells.script_of(parts, name, args, module=module)

    def run_script(self, part: ProcMesh, script: Script, *, tag: int, keep: bool) -> CellRun:
        """Submit a script to every rank of one of its parts and return at once."""
        from monarch_nb.control import cells

        return cells.run_script(part, script, tag=tag, keep=keep)

    def put(self, parts: Sequence[ProcMesh], values: Mapping[str, object]) -> None:
        """Set variables on the ranks of these parts of a mesh. Waits for them."""
        from monarch_nb.meshes import variables

        variables.put([each._part for each in parts], values).get()

    def get(self, parts: Sequence[ProcMesh], name: str, *, stacked: bool) -> Any:
        """Return a `ValueMesh` of a variable of these ranks; of several parts its axis is `rank`.

        With `stacked` one tensor or array; `ValueError` if the values do not fit. Waits for them.
        """
        from monarch_nb.data import stacking
        from monarch_nb.meshes import variables

        found = variables.get([each._part for each in parts], name).get()
        if not stacked:
            return found
        ranks = [rank for part in parts for rank in part.ranks]
        values = dict(zip(ranks, found.values(), strict=True))
        return stacking.stack(name, values, tuple(found.sizes.values()))


def _drives(client: Client, record: KeptRecord) -> bool:
    if client.proc.id != record.controller:
        return False
    hosts = () if record.hosts is None else [host for host, _ in record.hosts.names]
    return not client.has_lost_hosts(hosts)


def _client() -> Client:
    from monarch_nb.control import client

    return client.client()


def _details(processes: Iterable[int], timeout_s: float) -> Mapping[int, RankDetails]:
    from monarch_nb.control.status import details

    sinces = dict.fromkeys(processes, sys.maxsize)  # without their errors
    return details.ask(_client().proc, sinces, timeout_s)


def _prewarm(is_over: threading.Event) -> None:
    try:
        from monarch_nb.control import client
        from monarch_nb.control.keeping import kept_record

        records = kept_record.all_records()
        waits_here = any(each.hosts is None and not each.is_driven() for each in records)
        if not waits_here and not is_over.is_set():
            client.prewarm()
    except Exception:  # noqa: BLE001  the first mesh fails in the same way, where the user looks
        traceback.print_exc(file=sys.__stderr__)
