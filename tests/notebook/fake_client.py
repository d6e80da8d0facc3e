"""A controller whose ranks are threads of the kernel: the shape of the real one, with none of its
processes.

In a cell of the kernel under test: `from tests.notebook.fake_client import install; fake =
install(get_ipython())`. Cells of ranks see `rank`, `size`, `print`, `warn` (stderr),
`display(bundle)`, `sleep` (ends at an interrupt) and `stuck` (does not).
"""

from __future__ import annotations

import ast
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from monarch_nb.control.doctor import Finding
from monarch_nb.control.engines import Wanted
from monarch_nb.control.hosts.listing import ListedHost, to_revoke
from monarch_nb.control.jobs.status import JobStatus
from monarch_nb.control.keeping.returning import Left
from monarch_nb.control.output.routing import OutputEvent
from monarch_nb.control.status.snapshots import RankStatus
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.hangs.stacks import Frame
from monarch_nb.core.shape.extent import Extent, Shape
from monarch_nb.core.shape.mesh_trait import MeshTrait
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.errors import LaunchError
from monarch_nb.notebook.extension import load, unload_ipython_extension


class Done:
    """A future that is done, or fails."""

    def __init__(self, runs: Callable[[], Any] = lambda: None) -> None:
        self._runs = runs

    def get(self, timeout: float | None = None) -> Any:
        return self._runs()

    def done(self) -> bool:
        return True

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._runs()


class FakeMesh(MeshTrait):
    def __init__(
        self, control: FakeControl, name: str, shape: Shape, whole: FakeMesh | None = None
    ) -> None:
        self.control, self.name, self.shape, self.whole = control, name, shape, whole or self
        self.stopped = False
        self.spaces = (
            [{"rank": rank, "size": len(shape)} for rank in range(len(shape))]
            if not whole
            else whole.spaces
        )

    _ndslice = property(lambda self: self.shape.ndslice)
    _labels = property(lambda self: tuple(self.shape.labels))
    ranks = property(lambda self: self.shape.ranks())

    def _new_with_shape(self, shape: Shape) -> FakeMesh:
        return FakeMesh(self.control, self.name, shape, self.whole)

    @property
    def initialized(self) -> Done:
        return Done(self.control.starting)

    def stop(self) -> Done:
        return Done(lambda: setattr(self.whole, "stopped", True))

    def heal(self, *, shrink: bool = False) -> FakeMesh:
        if not shrink:
            return self
        self.stopped = True
        smaller = Extent(["gpus"], [len(self) - 1]).region.as_shape()
        return FakeMesh(self.control, self.name, smaller)

    def __repr__(self) -> str:
        return f"<FakeMesh {self.name}>"


@dataclass
class Outcome:
    status: str
    error: ErrorRecord | None = None
    data: dict[str, Any] | None = None


@dataclass
class FakeRun:
    mesh: FakeMesh
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stop: threading.Event = field(default_factory=threading.Event)
    interrupts: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.mesh.ranks)

    @property
    def pending(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.mesh.ranks if rank not in self.outcomes)

    def values(self) -> Done:
        """Nothing is kept: ranks show what they have to."""
        return Done(lambda: ValueMesh(self.mesh.shape, [None] * len(self.mesh.ranks)))

    @property
    def unheard(self) -> tuple[int, ...]:
        return () if self.interrupts else self.pending

    def wait(self, timeout_s: float | None = None) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: not self.pending, timeout_s)

    def interrupt(self) -> None:
        self.interrupts += 1
        self.stop.set()

    def free_waiting(self) -> None:
        """Nobody waits for others."""

    def recalled(self) -> None:
        """Nobody else has begun it."""

    def end(self, rank: int, outcome: Outcome) -> None:
        with self.changed:
            self.outcomes[rank] = outcome
            self.changed.notify_all()


class FakeClient:
    def __init__(self, control: FakeControl) -> None:
        self.control = control
        self.tag = 0
        self.outputs: list[Callable[[Any], None]] = []
        self.failures: list[Callable[[Any], None]] = []
        self.interrupted: list[int | None] = []
        self.has_shut_down = False
        self.comms = SimpleNamespace(listen=lambda listener: None, send=None)
        self.debugging = SimpleNamespace(
            listen=lambda changed: None, take=lambda taker: None, stops=list
        )
        self.status = SimpleNamespace(
            name_places=lambda name: None,
            timelines=dict,
            snapshot=lambda: self.snapshot(),  # noqa: PLW0108  a test puts another there
        )
        self.metrics = SimpleNamespace(curves=lambda mesh: {}, runs=lambda mesh: ())

    def tag_calls(self, tag: int) -> None:
        self.tag = tag

    def on_output(self, callback: Callable[[Any], None]) -> None:
        self.outputs.append(callback)

    def on_failure(self, callback: Callable[[Any], None]) -> None:
        self.failures.append(callback)

    def on_heal(self, callback: Callable[..., None]) -> None:
        """Nothing heals here."""

    def on_pulse(self, callback: Callable[[], object]) -> None:
        """Nobody is stopped."""

    def on_groups_made(self, callback: Callable[..., None]) -> None:
        """There are no process groups."""

    def on_mended(self, callback: Callable[..., None]) -> None:
        """There are no loops."""

    def on_restarted(self, callback: Callable[[str], None]) -> None:
        """Nothing fails here."""

    def interrupt(self, tag: int | None) -> None:
        self.interrupted.append(tag)
        for run_tag, run in self.control.runs:
            if run.pending and tag in (None, run_tag):
                run.interrupt()

    def waits(self, tag: int) -> list[Any]:
        return self.control.waits + [
            SimpleNamespace(what="cell", mesh=m.name, ranks=run.pending, size=len(m.whole))
            for run_tag, run in self.control.runs
            if (m := run.mesh) and run_tag == tag and run.pending
        ]

    def shutdown(self, timeout_s: float) -> None:
        self.has_shut_down = True

    def snapshot(self) -> Any:
        return SimpleNamespace(
            meshes=tuple(self._mesh(m) for m in self.control.meshes if not m.stopped),
            hosts=(SimpleNamespace(name="here", ended=None),),
            at=100.0,
        )

    def _mesh(self, mesh: FakeMesh) -> Any:
        ranks = []
        for rank in mesh.ranks:
            busy = any(
                rank in run.pending for _, run in self.control.runs if run.mesh.whole is mesh
            )
            coords = mesh.shape.coordinates(rank)
            state, what = ("busy", "a <cell>") if busy else ("idle", "")
            ranks.append(RankStatus(rank, coords, None, 0, state, what, 98.5, ""))
        return SimpleNamespace(
            name=mesh.name,
            labels=tuple(mesh.sizes),
            sizes=tuple(mesh.sizes.values()),
            ranks=tuple(ranks),
        )


class FakeJob:
    """A job whose hosts come one status after the other."""

    statuses: ClassVar[list[JobStatus]] = []
    """What it tells, in turn; the last for ever."""
    events: ClassVar[list[str]] = []
    least: ClassVar[int | None] = None
    """So many hosts are enough."""

    def __init__(self, name: str, wanted: Wanted) -> None:
        self.wanted = wanted
        self.told = 0
        self.name = name
        self.hosts = {name: wanted.hosts}

    def apply(self) -> None:
        self.events.append(f"apply {self.wanted.engine}")

    def status(self) -> JobStatus:
        self.told += 1
        return self._now()

    def _now(self) -> JobStatus:
        return self.statuses[min(self.told, len(self.statuses)) - 1]

    def state(self, cached_path: str | None) -> SimpleNamespace:
        return SimpleNamespace(**self.hosts)

    def has_enough(self) -> bool:
        return self.least is not None and self._now().joined >= self.least

    def settle(self) -> None:
        self.events.append("settle")
        self.hosts[self.name] = self._now().joined

    def scale(self, name: str, hosts: int, places: Iterable[str] = ()) -> int:
        self.events.append(" ".join([f"scale {hosts}", *places]))
        return hosts

    def shell_command(self, host: int) -> str:
        return f"enter host{host}"

    def script(self) -> str:
        return f"#SBATCH --nodes={self.wanted.hosts}\n"

    def kill(self) -> None:
        self.events.append("kill")


class FakeControl:
    """Has the methods of `Control`, with their parameters."""

    def __init__(self) -> None:
        self.client: FakeClient | None = None
        self.meshes: list[FakeMesh] = []
        self.runs: list[tuple[int, FakeRun]] = []
        self.calls: list[dict[str, Any]] = []
        self.starting: Callable[[], Any] = lambda: True
        self.lost_ranks: list[int] = []
        self.moved: list[str] = []
        self.killed: list[int] = []
        self.kept: dict[str, float] = {}
        self.records: list[Any] = []  # of kept meshes that nobody drives, or others do
        self.waits: list[Any] = []
        self.makes_job: Callable[[str, Wanted], Any] = FakeJob
        self.findings: list[Finding] = []
        self.listed: list[ListedHost] = []
        self.helps: Callable[..., dict[str, Any] | None] = lambda *_: None

    def running_client(self) -> FakeClient | None:
        return self.client

    def prewarm(self) -> None:
        """There is nothing to wait for."""

    def end_prewarm(self, timeout_s: float) -> None:
        """Nor to end."""

    def spawn(self, sizes: dict[str, int], name: str, device: str = "auto") -> FakeMesh:
        if device == "cuda":
            raise ValueError("this host has no GPU that a rank could use. Type: --device cpu")
        if sizes.get("gpus", 0) > 99:
            raise LaunchError("mesh0 could not be started: fork: out of memory")
        self.client = self.client or FakeClient(self)
        mesh = FakeMesh(self, name, Extent.from_dict(sizes).region.as_shape())
        self.meshes.append(mesh)
        return mesh

    def job(self, name: str, wanted: Wanted) -> Any:
        return self.makes_job(name, wanted)

    def spawn_on(
        self, job: Any, name: str, sizes: dict[str, int], device: str = "auto"
    ) -> FakeMesh:
        hosts = getattr(job.state(cached_path=None), name)
        return self.spawn({"hosts": hosts, **sizes}, name, device)

    def resized(self, job: Any, mesh: FakeMesh, hosts: int) -> FakeMesh:
        return self.spawn({**mesh.sizes, "hosts": hosts}, mesh.name)

    def host_of(self, mesh: FakeMesh, rank: int) -> int:
        return rank // mesh.sizes["gpus"]

    def run_on_host(self, mesh: FakeMesh, rank: int, command: Sequence[str]) -> int:
        self.calls.append({"run": list(command), "rank": rank})
        return 0

    def hosts(self) -> list[ListedHost]:
        return self.listed

    def revoke_host(self, wanted: str) -> ListedHost:
        found = to_revoke(self.listed, wanted)
        self.listed.remove(found)
        return found

    def doctor(self, mesh: FakeMesh | None) -> list[Finding]:
        return self.findings

    def is_mesh(self, value: object) -> bool:
        return isinstance(value, FakeMesh)

    def is_stopped(self, mesh: FakeMesh) -> bool:
        return mesh.whole.stopped

    def home(self, mesh: FakeMesh) -> None:
        """It has processes of its own."""

    def whole(self, mesh: FakeMesh) -> FakeMesh:
        return mesh.whole

    def refused(self, mesh: FakeMesh) -> None:
        """Its ranks start, or fail by themselves."""

    def lost(self, mesh: FakeMesh) -> list[int]:
        return sorted({*self.lost_ranks, *self.killed})

    def moves(self, mesh: FakeMesh) -> list[str]:
        return self.moved

    def processes(self, mesh: FakeMesh, ranks: Iterable[int]) -> list[int]:
        return [1000 + rank for rank in ranks]

    def find(self, name: str) -> FakeMesh | None:
        found = [mesh for mesh in self.meshes if mesh.name == name and not mesh.stopped]
        return found[-1] if found else None

    def xray(self) -> None:
        """Nobody hangs."""

    def settle_groups(self, mesh: FakeMesh) -> None:
        """There are no process groups."""

    def beside_cells(self, run: Callable[[], Any]) -> Any:
        return run()

    def keep(self, mesh: FakeMesh, for_s: float, job: Any = None) -> None:
        del job
        self.kept[mesh.name] = for_s

    def found_job(self, record: Any, mesh: FakeMesh) -> Any:
        """Nothing is of a job."""

    def kept_for(self, mesh: FakeMesh) -> float | None:
        return self.kept.get(mesh.name)

    def not_driven(self, mesh: FakeMesh) -> str | None:
        return None

    def leave(self, mesh: FakeMesh) -> None:
        raise NotImplementedError

    def look_at(self, record: Any, tag: int, tell: Any) -> Any:
        raise NotImplementedError

    def kept_meshes(self) -> list[Any]:
        return self.records

    def left(self, record: Any) -> Left:
        """Nothing is known."""
        return Left([], [])

    def end_kept(self, record: Any) -> None:
        self.records.remove(record)

    def adopt(self, record: Any, *, who: str, fence: bool) -> Any:
        raise NotImplementedError

    def resume(self, left: Any, *, tag: int) -> Any:
        raise NotImplementedError

    def recall(self, found: Any, tags: Any) -> None:
        raise NotImplementedError

    def interrupt(self, mesh: FakeMesh, ranks: Iterable[int] | None = None) -> bool:
        wanted = set(mesh.ranks if ranks is None else ranks)
        found = [r for _, r in self.runs if wanted & {*r.pending} and r.mesh.whole is mesh.whole]
        for run in found:
            run.interrupt()
        return bool(found)

    def kill(self, mesh: FakeMesh, ranks: Iterable[int]) -> None:
        self.killed += ranks

    def signal(self, mesh: FakeMesh, ranks: Iterable[int]) -> None:
        """Threads always hear."""

    def stacks(
        self, mesh: FakeMesh, ranks: Iterable[int], *, brief: bool = False
    ) -> dict[int, list[Stack]]:
        """At the first line of the last cell, as far as a thread can tell."""
        call = self.calls[-1]
        frame = Frame(call["filename"], call["first_line"] + 1, "<module>")
        return {rank: [Stack("", (frame,))] for rank in ranks}

    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]:
        return lambda: None

    def help(
        self, mesh: FakeMesh, rank: int, request: dict[str, Any], timeout_s: float, late: Any
    ) -> Any:
        return self.helps(rank, request, late)

    def variables(self, mesh: FakeMesh, ranks: Any, contents: Any = ()) -> dict[str, Any]:
        raise NotImplementedError

    def past_cells(self, mesh: FakeMesh) -> list[Any]:
        """None is remembered."""
        return []

    def run_cell(
        self, mesh: FakeMesh, code: str, *, filename: str, first_line: int, tag: int, keep: bool,
        what: str, fail_fast: bool = True,
    ) -> FakeRun:  # fmt: skip
        where = {"filename": filename, "first_line": first_line, "tag": tag, "keep": keep,
                 "what": what}  # fmt: skip
        run = FakeRun(mesh)
        self.runs.append((where["tag"], run))
        self.calls.append({"code": code, "ranks": mesh.ranks, **where})
        for rank in mesh.ranks:
            rank_at_work = RankCell(self, run, rank, where["tag"])
            threading.Thread(target=rank_at_work.run, args=(code, where), daemon=True).start()
        return run

    def logbook(self) -> None:
        """Nothing is kept."""

    def actors_of(self, mesh: FakeMesh, ranks: Iterable[int], timeout_s: float) -> dict[int, Any]:
        return {}

    def actor_totals(self, mesh: FakeMesh, ranks: Iterable[int], timeout_s: float) -> list[Any]:
        return []

    def open_failed(self, processes: Iterable[int] | None, tag: int | None = None) -> list[Any]:
        return []

    def stop_at_failure(self, processes: Iterable[int], *, on: bool) -> None:
        """Threads do not stop."""

    def forget_failed(self, processes: Iterable[int]) -> None:
        """Nothing is kept."""

    def script(self, parts: Any, name: str, args: Any, module: bool) -> Any:
        raise NotImplementedError

    def run_script(self, part: FakeMesh, script: Any, *, tag: int, keep: bool) -> Any:
        raise NotImplementedError

    def put(self, parts: Any, values: Any) -> None:
        raise NotImplementedError

    def get(self, parts: Any, name: str, *, stacked: bool) -> Any:
        raise NotImplementedError

    def emit(
        self, mesh: FakeMesh, rank: int, tag: int, stream: str, text: str = "", content: Any = None
    ) -> None:
        event = OutputEvent(tag, rank, mesh.name, len(mesh.whole), stream, text, content or {})
        for callback in self.client.outputs:
            callback(event)


class RankCell:
    """One rank running one cell."""

    def __init__(self, control: FakeControl, run: FakeRun, rank: int, tag: int) -> None:
        self.control, self.the_run, self.rank, self.tag = control, run, rank, tag

    def run(self, code: str, where: dict[str, Any]) -> None:
        names = self.the_run.mesh.spaces[self.rank]
        names |= {"print": self.print, "warn": self.warn, "sleep": self.sleep, "stuck": time.sleep,
                  "display": self.display}  # fmt: skip
        try:
            data = execute(code, where, names)
            outcome = Outcome(
                "ok", data=data and {"type": "execute_result", "data": data, "metadata": {}}
            )
        except BaseException as error:
            outcome = Outcome(
                "error", error=ErrorRecord.from_exception(error, lambda f: f == __file__)
            )
        self.the_run.end(self.rank, outcome)

    def print(self, *values: object, end: str = "\n") -> None:
        self.control.emit(
            self.the_run.mesh, self.rank, self.tag, "stdout", " ".join(map(str, values)) + end
        )

    def warn(self, text: str) -> None:
        self.control.emit(self.the_run.mesh, self.rank, self.tag, "stderr", text + "\n")

    def display(self, data: dict[str, Any]) -> None:
        content = {"type": "display_data", "data": data, "metadata": {}}
        self.control.emit(self.the_run.mesh, self.rank, self.tag, "display", content=content)

    def sleep(self, seconds: float) -> None:
        if self.the_run.stop.wait(seconds):
            raise KeyboardInterrupt


def execute(code: str, where: dict[str, Any], names: dict[str, Any]) -> dict[str, Any] | None:
    tree = ast.parse("\n" * (where["first_line"] - 1) + code, where["filename"])
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where["filename"], "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), where["filename"], "eval"), names)
    if value is None:
        return None
    return value.bundle if isinstance(value, Rich) else {"text/plain": repr(value)}


class Rich:
    """A value with a mime bundle of its own."""

    def __init__(self, **bundle: str) -> None:
        self.bundle = {key.replace("_", "/"): text for key, text in bundle.items()}


def install(shell: Any) -> FakeControl:
    """Load the extension into this shell anew, on a fake."""
    unload_ipython_extension(shell)
    return load(shell, FakeControl()).control


def press_stop() -> None:
    """SIGINT to this process, as an interrupt in signal mode."""
    signal.raise_signal(signal.SIGINT)
