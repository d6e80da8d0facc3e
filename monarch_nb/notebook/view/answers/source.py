"""What the mesh view reads: the client's snapshot and journals, and the ranks themselves.

Rule of the file: it only asks; through `control/api.py`. `read` never waits for a rank;
what does (`actors`, `stacks`, `variables`) says so and has a limit. Tests have a `FakeSource`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.notebook import hangs, tracebacks
from monarch_nb.notebook.cells import past_cells
from monarch_nb.notebook.debug.target import NO_DEBUGGER, Choice
from monarch_nb.notebook.shells import kept_outputs_of
from monarch_nb.notebook.view.answers import whole_logs
from monarch_nb.notebook.view.feed.inputs import FeedInputs, Nothing

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from monarch_nb.control.api import Client, Control, KeptRecord, ProcMesh
    from monarch_nb.control.output.failure_history import Failure, PastFailure
    from monarch_nb.control.output.tail import Line
    from monarch_nb.control.status.sampling import Watch
    from monarch_nb.control.status.snapshots import MeshStatus, RankStatus, Snapshot
    from monarch_nb.core.curves import Curve
    from monarch_nb.core.runs import Run
    from monarch_nb.core.wire.messages.codec import Request
    from monarch_nb.notebook.cells.past_cells import Offer
    from monarch_nb.notebook.cells.registry import CellRegistry
    from monarch_nb.notebook.debug.target import Debugging
    from monarch_nb.notebook.jobs.running import RunningJobs
    from monarch_nb.notebook.meshes import Meshes

A = TypeVar("A")

COUNT_S: Final = 1.0
"""How often ranks are asked what their actors have done, while somebody looks at that."""

COUNTS_PER_S: Final = 64
"""So many ranks a second at most: each answer costs the kernel about as much as a small call."""

NO_ANSWER: Final = ("exited", "unreachable", "stopped", "starting")
"""States of ranks that cannot be asked."""

Actors = dict[str, Sequence[Mapping[str, object]]]


class Source:
    """The real one."""

    def __init__(
        self,
        shell: InteractiveShell,
        control: Control,
        meshes: Meshes,
        cells: CellRegistry,
        debugging: Debugging,
        jobs: RunningJobs,
    ) -> None:
        self._shell = shell
        self._control = control
        self._meshes = meshes
        self._cells = cells
        self._debugging = debugging
        self._jobs = jobs
        self._watch: Watch | None = None
        self._watched: tuple[Client, float] | None = None
        self._counting: threading.Thread | None = None
        self._counts: Actors = {}
        self._count_at = 0.0
        self._failed: dict[str, Sequence[RankStatus]] = {}

    # ------------------------------------------------------------------------ at each moment

    def read(
        self, period_s: float, parts: Collection[str], on_news: Callable[[bool], None]
    ) -> FeedInputs:
        """Return what there is to see, sampled so often from now on.

        `on_news` is called, on any thread, when ranks have told something since; with True if it
        is urgent.
        """
        client = self._control.running_client()
        self._watch_at(client, period_s, on_news)
        cell = self._cells.at_work()
        if client is None:
            return FeedInputs(cell=cell, jobs=self._jobs.seen())
        snapshot = client.status.snapshot()
        names = [mesh.name for mesh in snapshot.meshes]
        if "actors" in parts:
            self._count_actors(snapshot)
        if "failures" in parts:
            self._learn_of_failures(client, snapshot)
        return FeedInputs(
            snapshot,
            cell,
            client.status.timelines() if "strips" in parts else {},
            {name: client.failures.of(name) for name in names if "failures" in parts},
            {name: client.metrics.curves(name) for name in names if "curves" in parts},
            self._counts,
            self._meshes.current_name(),
            self._jobs.seen(),
            {name: client.failures.past(name) for name in names if "failures" in parts},
            {name: client.metrics.runs(name) for name in names if "curves" in parts},
        )

    def rest(self) -> None:
        """Sample no more: nobody looks."""
        self._watch_at(None, 0.0, lambda _: None)
        self._counts = {}
        self._failed = {}

    def last_line(self) -> int:
        """Return the number of the newest line of all ranks; 0 where there is none."""
        client = self._control.running_client()
        return 0 if client is None else client.tail.seq

    def lines_after(
        self, seq: int, mesh: str | None, ranks: Sequence[int] | None, limit: int
    ) -> tuple[Sequence[Line], int, int]:
        """Return the newest lines after this number, how many are left out, the newest number."""
        client = self._control.running_client()
        if client is None:
            return (), 0, 0
        return client.tail.after(seq, mesh, ranks, limit)

    # ------------------------------------------------------------------------------ when asked

    def snapshot(self) -> Snapshot | Nothing:
        client = self._control.running_client()
        return Nothing() if client is None else client.status.snapshot()

    def actors(
        self, name: str, rank: int, timeout_s: float
    ) -> Sequence[Mapping[str, object]] | None:
        """Return the actors of a rank; None if it does not tell them in time."""
        mesh = self._control.find(name)
        if mesh is None:
            return None
        return self._control.actors_of(mesh, [rank], timeout_s).get(rank)

    def failures(self, name: str) -> Sequence[Failure]:
        """Return the failures on a mesh, newest first."""
        client = self._control.running_client()
        return () if client is None else client.failures.of(name)

    def past_failures(self, name: str) -> Sequence[PastFailure]:
        """Return those of its name that are over, newest first."""
        client = self._control.running_client()
        return () if client is None else client.failures.past(name)

    def log_part(
        self, mesh: str, ranks: Sequence[int] | None, after: str
    ) -> tuple[str, str | None]:
        """Return some of the whole logs of ranks, and what to ask with for more; see
        `answers/whole_logs.py`."""
        book = self._control.logbook()
        return ("", None) if book is None else whole_logs.part(book, mesh, ranks, after)

    def curves(self, name: str) -> Mapping[str, Curve]:
        client = self._control.running_client()
        return {} if client is None else client.metrics.curves(name)

    def runs(self, name: str) -> Sequence[Run]:
        client = self._control.running_client()
        return () if client is None else client.metrics.runs(name)

    def lines(
        self,
        mesh: str,
        ranks: Sequence[int] | None,
        count: int,
        pattern: str = "",
        level: str = "",
        before: int | None = None,
        number: int | None = None,
    ) -> Sequence[Line]:
        """Return the last lines of a mesh, oldest first; `number` is that of one of its name."""
        client = self._control.running_client()
        if client is None:
            return ()
        wanted = re.compile(pattern) if pattern else None
        return client.tail.last(count, mesh, ranks, wanted, level, before, number)

    def stacks(self, name: str, ranks: Sequence[int]) -> Mapping[int, Sequence[Stack]]:
        """Return where these ranks are; without those that are silent."""
        mesh = self._found(name)
        check_ranks(mesh, ranks)
        return self._control.stacks(mesh, ranks)

    def words(self, stacks: Sequence[Stack]) -> str:
        """Return all calls of a rank, cells under their names."""
        return hangs.text(self._shell, stacks)

    def name(self, file: str) -> str:
        """Return what people call a file: a cell by its number."""
        return tracebacks.name_of_cell(self._shell, file) or file

    def debugged(self) -> Choice:
        """Return whom the visual debugger is for. Raises `ValueError` where there is none."""
        if not self._debugging.is_there:
            raise ValueError(NO_DEBUGGER)
        return self._debugging.chosen

    def variables(self, name: str, contents: Sequence[str]) -> Mapping[str, Any]:
        """Return what the ranks have, as docs/terminal.md describes it; waits for them."""
        return self._control.variables(self._found(name), None, contents)

    def ask_rank(self, name: str, rank: int, request: Request[A], timeout_s: float) -> A:
        """Return the answer of a rank. Raises `ValueError` where it refuses or is silent."""
        mesh = self._found(name)
        check_ranks(mesh, [rank])
        answer = self._control.help(mesh, rank, request, timeout_s, lambda _: None)
        if answer is not None and not isinstance(answer, Refused):
            return answer
        why = answer.error if answer else "no answer; %mesh status shows why"
        raise ValueError(f"rank {rank}: {why}")

    def kept_meshes(self) -> Sequence[KeptRecord]:
        """Return the meshes that outlive their kernel; not those that this one drives."""
        return self._control.kept_meshes()

    def replay(self, name: str) -> Offer | None:
        """Return what gives ranks that were started again what cells have defined; None where no
        rank lacks any of that."""
        mesh = self._control.find(name)
        if mesh is None:
            return None
        other = None if name == self._meshes.current_name() else name
        return past_cells.offer(self._control.past_cells(mesh), None, other)

    def outputs(self, since_s: float) -> Sequence[Mapping[str, object]]:
        """Return the cells that run, and those that have changed since then, with outputs."""
        kept = kept_outputs_of(self._shell)
        return () if kept is None else kept.since(since_s)

    def cell_id(self, number: int) -> str | None:
        return self._cells.cell_id(number)

    def traceback(self, record: ErrorRecord) -> str:
        """Return an error in full, with the lines of cells."""
        lookup = partial(tracebacks.line_of_cell, self._shell)
        return "\n".join(record.format(lookup, partial(tracebacks.name_of_cell, self._shell)))

    def where(self, record: ErrorRecord) -> str:
        """Return the line of the user's at which an error arose: `Cell In[3], line 2`."""
        return tracebacks.place_of_error(self._shell, record)

    def _found(self, name: str) -> ProcMesh:
        mesh = self._control.find(name)
        if mesh is None:
            raise ValueError(f"there is no mesh {name!r} any more")
        return mesh

    def _watch_at(
        self, client: Client | None, period_s: float, on_news: Callable[[bool], None]
    ) -> None:
        # Have the ranks' states sampled so often; with no client, not at all
        wanted = None if client is None else (client, period_s)
        if wanted == self._watched:
            return
        before, self._watch, self._watched = self._watch, None, None
        if client is not None:
            self._watch, self._watched = client.status.watch(period_s, on_news), wanted
        if before is not None:
            before.close()

    def _count_actors(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        counting = self._counting is not None and self._counting.is_alive()
        if counting or now < self._count_at:
            return
        meshes = [each for each in snapshot.meshes if each.actors and each.ended is None]
        asked = sum(len(each.ranks) for each in meshes)
        self._count_at = now + max(COUNT_S, asked / COUNTS_PER_S)
        if not meshes:
            self._counts = {}
            return
        self._counting = threading.Thread(
            target=self._count, args=(meshes,), name="monarch-live-actors", daemon=True
        )
        self._counting.start()

    def _count(self, meshes: Sequence[MeshStatus]) -> None:
        counts: Actors = {}
        for status in meshes:
            if (mesh := self._control.find(status.name)) is not None:
                ranks = [each.rank for each in status.ranks if each.state not in NO_ANSWER]
                totals = self._control.actor_totals(mesh, ranks, COUNT_S)
                counts[status.name] = totals
        self._counts = counts

    def _learn_of_failures(self, client: Client, snapshot: Snapshot) -> None:
        # Ask ranks for their new errors; they count them where everybody can see it
        for status in snapshot.meshes:
            seen = self._failed.get(status.name)
            if seen is status.ranks:
                continue
            self._failed[status.name] = status.ranks
            before = {each.rank: each.failed for each in seen or ()}
            new = [each.rank for each in status.ranks if each.failed != before.get(each.rank, 0)]
            mesh = self._control.find(status.name) if new else None
            if mesh is not None:
                client.failures.refresh(self._control.processes(mesh, new))
