"""The seam to the runtime below: what the notebook asks of it, and nothing else.

Rule of the file: the real runtime is imported at its first use, so that a kernel starts without it.
Tests put a fake of the same shape in its place (`session.runtime = FakeRuntime()`).
"""

from __future__ import annotations

import math
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from monarch_nb.control import started
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.wire.messages.cells import WidgetMessage
from monarch_nb.core.wire.messages.codec import Refused, Request

if TYPE_CHECKING:
    from monarch_nb.core.wire.messages.status import RankDetails
    from monarch_nb.notebook.hangs.wording import Xray

T = TypeVar("T")
A = TypeVar("A")


class Outcome(Protocol):
    """How a cell ended on one rank: an error record, or what it displays, or neither."""

    @property
    def status(self) -> str: ...
    @property
    def error(self) -> Any: ...
    @property
    def data(self) -> Mapping[str, Any] | None: ...


class CellRun(Protocol):
    """A cell that runs on the ranks of a mesh."""

    @property
    def mesh(self) -> Any: ...
    @property
    def outcomes(self) -> Mapping[int, Outcome]: ...
    @property
    def pending(self) -> tuple[int, ...]: ...
    @property
    def unheard(self) -> tuple[int, ...]: ...
    @property
    def started_s(self) -> float: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def interrupt(self) -> None: ...
    def values(self) -> Any: ...
    def value(self, rank: int) -> Any: ...


class Wait(Protocol):
    """Answers that are missing: `what` is a call, "start" or "cell"."""

    @property
    def what(self) -> str: ...
    @property
    def mesh(self) -> str: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...


class Logbook(Protocol):
    """What the ranks have written."""

    @property
    def folder(self) -> Path: ...
    def meshes(self) -> Mapping[str, int]: ...
    def flush(self) -> None: ...
    def last(
        self, mesh: str, rank: int, count: int, pattern: Any, tags: Collection[int] | None
    ) -> list[str]: ...


class Comms(Protocol):
    """Widget messages of ranks, both ways."""

    def listen(self, listener: Any) -> None: ...
    def send(self, process: int, message: WidgetMessage, buffers: Sequence[bytes]) -> None: ...


class Client(Protocol):
    """The controller's end of every mesh."""

    tag: int

    @property
    def comms(self) -> Comms: ...
    def on_output(self, callback: Callable[[Any], None]) -> None: ...
    def on_failure(self, callback: Callable[[Any], None]) -> None: ...
    def snapshot(self) -> Any: ...
    def interrupt(self, tag: int | None) -> None: ...
    def waits(self, tag: int) -> Sequence[Wait]: ...
    def shutdown(self, timeout_s: float) -> None: ...


class Runtime(Protocol):
    """Everything the notebook needs from below."""

    def running_client(self) -> Client | None: ...
    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]: ...
    def logbook(self) -> Logbook | None: ...
    def prewarm(self) -> None: ...
    def end_prewarm(self, timeout_s: float) -> None: ...
    def spawn(self, sizes: Mapping[str, int], name: str, device: str = "auto") -> Any: ...
    def find(self, name: str) -> Any: ...
    def is_mesh(self, value: object) -> bool: ...
    def is_stopped(self, mesh: Any) -> bool: ...
    def home(self, mesh: Any) -> tuple[str, Sequence[int]] | None: ...
    def whole(self, mesh: Any) -> Any: ...
    def lost(self, mesh: Any) -> Sequence[int]: ...
    def processes(self, mesh: Any, ranks: Iterable[int]) -> Sequence[int]: ...
    def interrupt(self, mesh: Any, ranks: Iterable[int] | None = None) -> bool: ...
    def kill(self, mesh: Any, ranks: Iterable[int]) -> None: ...
    def strike(self, mesh: Any, ranks: Iterable[int]) -> None: ...
    def stacks(
        self, mesh: Any, ranks: Iterable[int], *, brief: bool = False
    ) -> Mapping[int, Sequence[Stack]]: ...
    def actors_of(
        self, mesh: Any, ranks: Iterable[int], timeout_s: float
    ) -> Mapping[int, Sequence[Mapping[str, Any]]]: ...
    def actor_totals(
        self, mesh: Any, ranks: Iterable[int], timeout_s: float
    ) -> Sequence[Mapping[str, Any]]: ...
    def xray(self) -> Xray | None: ...
    def beside_cells(self, run: Callable[[], T]) -> T: ...
    def help(
        self,
        mesh: Any,
        rank: int,
        request: Request[A],
        timeout_s: float,
        late: Callable[[A | Refused], None],
    ) -> A | Refused | None: ...
    def run_cell(
        self,
        mesh: Any,
        code: str,
        *,
        filename: str,
        first_line: int,
        tag: int,
        keep: bool,
        what: str,
    ) -> CellRun: ...
    def put(self, parts: Sequence[Any], values: Mapping[str, Any]) -> None: ...
    def get(self, parts: Sequence[Any], name: str, *, stacked: bool) -> Any: ...
    def script(self, parts: Sequence[Any], name: str, args: Sequence[str], module: bool) -> Any: ...
    def run_script(self, part: Any, script: Any, *, tag: int, keep: bool) -> CellRun: ...


class MonarchRuntime:
    """The real one."""

    def __init__(self) -> None:
        self._prewarming: threading.Thread | None = None
        self._is_over = threading.Event()

    def running_client(self) -> Client | None:
        """The client, if anything has started it."""
        module = sys.modules.get("monarch_nb.control.client")
        running = getattr(module, "running_client", None)  # `prewarm` may be importing it
        found: Client | None = running() if running else None
        return found

    def logbook(self) -> Logbook | None:
        """The logs of ranks, if anything has started the client."""
        found: Any = self.running_client()
        book: Logbook | None = found and found.output.logbook
        return book

    def when_started(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when a client starts: the cell that starts it is heard from its first line.

        Returns what takes the callback back.
        """
        return started.when_started(callback)

    def prewarm(self) -> None:
        """Start what the first mesh needs, in the background: it is to come up at once."""
        self._prewarming = threading.Thread(
            target=_prewarm, args=(self._is_over,), name="monarch-prewarm", daemon=True
        )
        self._prewarming.start()

    def end_prewarm(self, timeout_s: float) -> None:
        """The kernel ends: what the background has begun is finished, so that it can be ended."""
        self._is_over.set()
        if self._prewarming is not None:
            self._prewarming.join(timeout_s)

    def spawn(self, sizes: Mapping[str, int], name: str, device: str = "auto") -> Any:
        """Start ranks on this host; does not wait for them. `device`: see `control.gpus`.

        Raises `ValueError` where GPUs are wanted and there is none.
        """
        from monarch_nb import this_host
        from monarch_nb.control.hosts import gpus

        command = gpus.command_for(device, math.prod(sizes.values()))
        return this_host().spawn_procs(per_host=dict(sizes), name=name, bootstrap_command=command)

    def find(self, name: str) -> Any:
        """The mesh of processes of this name that is up, whole; None if there is none."""
        client: Any = self.running_client()
        if client is None:
            return None
        states = list(client.supervision.states.values())
        found = [each for each in states if each.kind == "proc" and each.name == name]
        living = [each for each in found if each.ended is None]
        return living[-1].view() if living else None

    def is_mesh(self, value: object) -> bool:
        """Whether this is a mesh of processes, on which cells can run."""
        module = sys.modules.get("monarch_nb.meshes.proc_mesh")
        wanted = getattr(module, "ProcMesh", ())  # `prewarm` may be importing it
        return issubclass(type(value), wanted)  # `isinstance` would ask the user's own `__class__`

    def is_stopped(self, mesh: Any) -> bool:
        """Whether somebody has stopped it."""
        return mesh._state.ended is not None

    def home(self, mesh: Any) -> tuple[str, Sequence[int]] | None:
        """The mesh of processes that actors live on, and their ranks there; None for others."""
        procs = getattr(mesh._state, "procs", None)
        if procs is None:
            return None
        return procs.name, [mesh._state.proc_ranks[rank] for rank in mesh.ranks]

    def whole(self, mesh: Any) -> Any:
        """The mesh that this is, or is a slice of."""
        return mesh if len(mesh) == len(mesh._state.processes) else mesh._state.view()

    def lost(self, mesh: Any) -> Sequence[int]:
        """The ranks that are lost and not healed."""
        return [rank for rank in mesh.ranks if rank in mesh._state.lost]

    def processes(self, mesh: Any, ranks: Iterable[int]) -> Sequence[int]:
        """The ids of these ranks' processes, which no others will ever have."""
        return [mesh._state.processes[rank] for rank in ranks]

    def interrupt(self, mesh: Any, ranks: Iterable[int] | None = None) -> bool:
        """Interrupt the cells and calls that these ranks of the whole mesh, or all of this one, owe
        an answer to. Returns at once; whether there were any."""
        client: Any = self.running_client()
        wanted = mesh.ranks if ranks is None else ranks
        return bool(client.interrupt_processes(self.processes(mesh, wanted)))

    def kill(self, mesh: Any, ranks: Iterable[int]) -> None:
        """End the processes of these ranks. Returns at once."""
        from monarch_nb.control import client
        from monarch_nb.control.hangs import signals

        signals.kill(client.client().proc, mesh, ranks)

    def strike(self, mesh: Any, ranks: Iterable[int]) -> None:
        """Interrupt ranks that do not read their messages. Returns at once."""
        from monarch_nb.control import client
        from monarch_nb.control.hangs import signals

        signals.interrupt(client.client().proc, mesh, ranks)

    def stacks(
        self, mesh: Any, ranks: Iterable[int], *, brief: bool = False
    ) -> Mapping[int, Sequence[Stack]]:
        """Where all threads of these ranks are in code of the user's, the main thread first; of
        those that can say it, within a tenth of a second where it is to be `brief`."""
        from monarch_nb.control import client
        from monarch_nb.control.hangs import stacks

        limit_s = stacks.BRIEF_S if brief else stacks.LIMIT_S
        return stacks.look(client.client().proc, mesh, ranks, limit_s)

    def actors_of(
        self, mesh: Any, ranks: Iterable[int], timeout_s: float
    ) -> Mapping[int, Sequence[Mapping[str, Any]]]:
        """The actors on these ranks and what they have done; of ranks that tell it in time."""
        from monarch_nb.control.status import details

        rank_of = {self.processes(mesh, [rank])[0]: rank for rank in ranks}
        told = _details(rank_of, timeout_s)
        return {rank_of[process]: details.actors_of(each) for process, each in told.items()}

    def actor_totals(
        self, mesh: Any, ranks: Iterable[int], timeout_s: float
    ) -> Sequence[Mapping[str, Any]]:
        """What the actors on these ranks have done, all ranks together; of what is told in time."""
        from monarch_nb.control.status import details

        told = _details(self.processes(mesh, ranks), timeout_s)
        totals: Sequence[Mapping[str, Any]] = details.actor_totals(mesh._state, told)
        return totals

    def xray(self) -> Xray | None:
        """Who looks into hanging ranks, if anything has started the client."""
        from monarch_nb.control.hangs import collectives

        client: Any = self.running_client()
        return collectives.Xray(client.proc, client.supervision) if client is not None else None

    def beside_cells(self, run: Callable[[], T]) -> T:
        """Run this on behalf of no cell: the stop button of a cell does not reach its calls, and
        their output is not that of the running cell."""
        from monarch_nb.control import client

        return client.client().run_untagged(run)

    def help(
        self,
        mesh: Any,
        rank: int,
        request: Request[A],
        timeout_s: float,
        late: Callable[[A | Refused], None],
    ) -> A | Refused | None:
        """What a rank says about its names, if it does in time; `late` gets what comes later."""
        from monarch_nb.control import client
        from monarch_nb.control.cells.completion import ask

        running = client.running_client()
        if running is None:
            return None
        return ask(running.proc, mesh, rank, request, timeout_s, late)

    def run_cell(
        self,
        mesh: Any,
        code: str,
        *,
        filename: str,
        first_line: int,
        tag: int,
        keep: bool,
        what: str,
    ) -> CellRun:
        """Submit the code to every rank of the mesh and return at once.

        With `keep` the ranks keep the value of its last expression for whoever has the run. `what`
        is what views call it.
        """
        from monarch_nb.control.cells import run as cells

        run: CellRun = cells.run_cell(
            mesh, code, filename=filename, first_line=first_line, tag=tag, keep=keep, what=what
        )
        return run

    def put(self, parts: Sequence[Any], values: Mapping[str, Any]) -> None:
        """Set variables on the ranks of these parts of a mesh. Waits for them."""
        from monarch_nb.control.cells import variables

        variables.put(parts, values)

    def get(self, parts: Sequence[Any], name: str, *, stacked: bool) -> Any:
        """A `ValueMesh` of a variable of these ranks, or one tensor or array. Waits for them."""
        from monarch_nb.control.cells import variables

        return variables.get_stacked(parts, name) if stacked else variables.get(parts, name)

    def script(self, parts: Sequence[Any], name: str, args: Sequence[str], module: bool) -> Any:
        """A run of a script, or of a module, whose world is these parts of a mesh."""
        from monarch_nb.control.cells import scripts

        return scripts.script_of(parts, name, args, module=module)

    def run_script(self, part: Any, script: Any, *, tag: int, keep: bool) -> CellRun:
        """Submit a script to every rank of one of its parts and return at once."""
        from monarch_nb.control.cells import scripts

        run: CellRun = scripts.run_script(part, script, tag=tag, keep=keep)
        return run


def _details(processes: Iterable[int], timeout_s: float) -> Mapping[int, RankDetails]:
    """What processes tell of themselves, without their errors."""
    from monarch_nb.control import client
    from monarch_nb.control.status import details

    sinces = dict.fromkeys(processes, sys.maxsize)
    return details.ask(client.client().proc, sinces, timeout_s)


def _prewarm(is_over: threading.Event) -> None:
    try:
        from monarch_nb.control import client

        if not is_over.is_set():
            client.prewarm()
    except Exception:  # noqa: BLE001  the first mesh fails in the same way, where the user looks
        traceback.print_exc(file=sys.__stderr__)
