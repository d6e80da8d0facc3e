"""What the mesh view reads, without a mesh: the shapes of the real source, driven by a test.

In a cell of the kernel under test: `from tests.notebook.view.fake_source import install; fake =
install(get_ipython())`; then `fake.mesh("mesh0", gpus=4)` and `fake.change("mesh0", 2,
state="busy")`.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from monarch_nb.control.keeping.kept_record import KeptRecord
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.hangs.stack_tree import Stack
from monarch_nb.core.hangs.stacks import Frame
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.notebook.cells.past_cells import Offer
from monarch_nb.notebook.debug.target import Choice
from monarch_nb.notebook.output.kept import KeptOutputs
from monarch_nb.notebook.session import session_of
from monarch_nb.notebook.view.feed.inputs import CellAtWork, FeedInputs


@dataclass(frozen=True, slots=True)
class FakeUsage:
    cpu_percent: int = 0
    rss_bytes: int = 0
    gpu_percent: int | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FakeRank:
    rank: int
    coords: dict[str, int]
    pid: int | None = 1000
    host: int = 0
    state: str = "idle"
    what: str = ""
    since: float = 0.0
    detail: str = ""
    queue: int = 0
    calls: int = 0
    failed: int = 0
    beat: int = 0
    usage: FakeUsage = FakeUsage()


@dataclass(frozen=True)
class FakeActor:
    name: str
    cls: str
    size: int
    ended: str | None = None


@dataclass(frozen=True)
class FakeMeshStatus:
    name: str
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[FakeRank, ...]
    actors: tuple[FakeActor, ...] = ()
    ended: str | None = None
    number: int = 0


@dataclass(frozen=True)
class FakeHost:
    name: str
    ended: str | None = None


@dataclass(frozen=True)
class FakeSnapshot:
    meshes: tuple[FakeMeshStatus, ...]
    hosts: tuple[FakeHost, ...]
    at: float = 0.0


@dataclass
class FakeTimeline:
    """`ended` has a text of letters, one a rank, for each second; older ones are forgotten."""

    ended: list[str] = field(default_factory=list)
    forgotten: int = 0

    @property
    def seconds(self) -> int:
        return self.forgotten + len(self.ended)

    def strips(self) -> list[str]:
        return ["".join(letters) for letters in zip(*self.ended[-300:], strict=True)]

    def letters(self, second: int) -> str:
        return self.ended[second - self.forgotten]


@dataclass
class FakeCurve:
    version: int = 0
    points: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, step: float, mean: float, count: int = 1) -> None:
        self.points = [*self.points, (step, mean, mean, mean, count)]
        self.version += 1

    @property
    def ranks(self) -> list[int]:
        return [0, 1]

    def of(self, rank: int) -> list[tuple[float, float]]:
        return [(step, mean) for step, mean, *_ in self.points]


AT_MS = 1_700_000_000_000


@dataclass
class FakeRun:
    number: int
    name: str
    curves: dict[str, FakeCurve]


@dataclass(frozen=True)
class FakeFailure:
    id: int
    ranks: tuple[int, ...]
    record: ErrorRecord
    what: str = "a cell"
    at: float = 0.0
    count: int = 1
    came_at: float = AT_MS / 1000
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class FakePast:
    failure: FakeFailure
    became: str = "healed 0.4 s later: a new process"


@dataclass(frozen=True)
class FakeLine:
    seq: int
    mesh: str
    rank: int
    stream: str
    level: str
    text: str
    at: float = AT_MS / 1000


class FakeSource:
    """Sees what the test has set."""

    def __init__(
        self, cell: Callable[[], CellAtWork | None] = lambda: None, tells_news: bool = True
    ) -> None:
        self.tells_news = tells_news
        self._numbers = itertools.count(1)
        self.on_news: Callable[[bool], None] = lambda _: None
        self.meshes: dict[str, FakeMeshStatus] = {}
        self.hosts: tuple[FakeHost, ...] = (FakeHost("here"),)
        self.timelines: dict[str, FakeTimeline] = {}
        self.of_failures: dict[str, tuple[FakeFailure, ...]] = {}
        self.of_past: dict[str, tuple[FakePast, ...]] = {}
        self.of_curves: dict[str, dict[str, FakeCurve]] = {}
        self.of_runs: dict[str, list[FakeRun]] = {}
        self.counts: dict[str, list[dict[str, Any]]] = {}
        self.journal: list[FakeLine] = []
        self.looks: list[tuple[float, frozenset[str]]] = []
        self.rests = 0
        self.told: dict[int, Any] = {}
        self.hangs = threading.Event()
        self.hangs.set()
        self.cell = cell
        self.current: str | None = None
        self.namesakes: list[FakeMeshStatus] = []
        self.records: list[KeptRecord] = []
        self.offers: dict[str, Offer] = {}
        self.described: Mapping[str, Any] = {}
        self.answers: dict[type, Any] = {}
        self.asked: list[Any] = []

    # what the test does

    def mesh(self, name: str, **sizes: int) -> FakeMeshStatus:
        """A mesh is up."""
        extent = Extent.from_dict(sizes)
        ranks = tuple(
            FakeRank(rank, dict(Point(rank, extent)), since=1.0)
            for rank in range(math.prod(sizes.values()))
        )
        number = next(self._numbers)
        self.meshes[name] = FakeMeshStatus(
            name, tuple(sizes), tuple(sizes.values()), ranks, number=number
        )
        return self.meshes[name]

    def change(self, name: str, *ranks: int, urgent: bool = False, **changes: Any) -> None:
        """Some of its ranks do something else."""
        mesh = self.meshes[name]
        new = tuple(replace(r, **changes) if r.rank in ranks else r for r in mesh.ranks)
        self.meshes[name] = replace(mesh, ranks=new)
        self.on_news(urgent)

    def write(self, mesh: str, rank: int, *texts: str, level: str = "") -> None:
        """A rank prints lines."""
        first = len(self.journal) + 1
        self.journal += [
            FakeLine(first + i, mesh, rank, "stdout", level, text) for i, text in enumerate(texts)
        ]

    def flicker(self, name: str, seconds: float, period_s: float = 0.01) -> None:
        """All its ranks change all the time, in a thread."""

        def run() -> None:
            pause, deadline = threading.Event(), time.monotonic() + seconds
            for turn in itertools.count():
                if time.monotonic() > deadline:
                    return
                state, what = ("busy", f"step {turn}") if turn % 2 else ("idle", "")
                ranks = range(len(self.meshes[name].ranks))
                self.change(name, *ranks, state=state, what=what, since=time.monotonic())
                pause.wait(period_s)

        threading.Thread(target=run, daemon=True).start()

    # what the real one does

    def read(
        self,
        period_s: float,
        parts: frozenset[str],
        on_news: Callable[[bool], None] = lambda _: None,
    ) -> FeedInputs:
        if self.tells_news:
            self.on_news = on_news
        self.looks.append((period_s, parts))
        del self.looks[:-100]
        return FeedInputs(
            self.snapshot(),
            self.cell(),
            self.timelines if "strips" in parts else {},
            self.of_failures if "failures" in parts else {},
            self.of_curves if "curves" in parts else {},
            self.counts,
            self.current,
            past=self.of_past if "failures" in parts else {},
            runs=self.of_runs if "curves" in parts else {},
        )

    def rest(self) -> None:
        self.rests += 1

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot((*self.namesakes, *self.meshes.values()), self.hosts)

    def last_line(self) -> int:
        return len(self.journal)

    def lines_after(
        self, seq: int, mesh: str | None, ranks: Sequence[int] | None, limit: int
    ) -> tuple[Sequence[FakeLine], int, int]:
        found = [
            line
            for line in self.journal
            if line.seq > seq
            and mesh in (None, line.mesh)
            and (ranks is None or line.rank in ranks)
        ]
        return found[-limit:], max(len(found) - limit, 0), len(self.journal)

    def actors(self, name: str, rank: int, timeout_s: float) -> Sequence[Mapping[str, Any]] | None:
        self.hangs.wait()
        return self.told.get(rank)

    def failures(self, name: str) -> Sequence[FakeFailure]:
        return self.of_failures.get(name, ())

    def past_failures(self, name: str) -> Sequence[FakePast]:
        return self.of_past.get(name, ())

    def log_part(
        self, mesh: str, ranks: Sequence[int] | None, after: str
    ) -> tuple[str, str | None]:
        """A line a piece."""
        lines = [line for line in self.journal if ranks is None or line.rank in ranks]
        place = int(after or 0)
        following = str(place + 1) if place + 1 < len(lines) else None
        return (lines[place].text if lines else ""), following

    def curves(self, name: str) -> Mapping[str, FakeCurve]:
        return self.of_curves.get(name, {})

    def runs(self, name: str) -> Sequence[FakeRun]:
        return self.of_runs.get(name, ())

    def lines(
        self, mesh: str, ranks: Any, count: int, pattern: str = "", level: str = "",
        before: int | None = None, number: int | None = None,
    ) -> list[FakeLine]:  # fmt: skip
        found = [
            line
            for line in self.journal
            if line.mesh == mesh and (ranks is None or line.rank in ranks)
            if pattern in line.text and level in ("", line.level)
            if before is None or line.seq < before
        ]
        return found[-count:]

    def stacks(self, name: str, ranks: Sequence[int]) -> dict[int, list[Stack]]:
        frame = Frame("train.py", 41, "step")
        return {rank: [Stack("", (frame,))] for rank in ranks[:-1]}

    def words(self, stacks: Sequence[Stack]) -> str:
        return f"at {stacks[0].frames[0].function}"

    def name(self, file: str) -> str:
        return file

    def debugged(self) -> Choice:
        return Choice("mesh0", (1, 2))

    def kept_meshes(self) -> Sequence[KeptRecord]:
        return self.records

    def replay(self, name: str) -> Offer | None:
        return self.offers.get(name)

    def variables(self, name: str, contents: Sequence[str]) -> Mapping[str, Any]:
        self.asked.append(contents)
        return self.described

    def ask_rank(self, name: str, rank: int, request: Any, timeout_s: float) -> Any:
        """Answered with what `answers` has for such a request; refused without."""
        self.asked.append(request)
        if type(request) not in self.answers:
            raise ValueError(f"rank {rank}: this rank has no variable {request.name!r}")
        return self.answers[type(request)]

    def outputs(self, since_s: float) -> Sequence[Mapping[str, object]]:
        kept = KeptOutputs()
        kept.begin({"header": {"msg_id": "m", "session": "s"}, "metadata": {"cellId": "c"}})
        kept.take("stream", {"name": "stdout", "text": f"{since_s:g}"}, "m_1", "m")
        return kept.since(since_s)

    def cell_id(self, number: int) -> str | None:
        return f"id-{number}" if number < 10 else None

    def traceback(self, record: ErrorRecord) -> str:
        return "\n".join(record.format())

    def where(self, record: ErrorRecord) -> str:
        return "Cell In[1], line 1"


def install(shell: Any) -> FakeSource:
    """Put a fake under the mesh view of this shell."""
    session = session_of(shell)
    session.live.source = source = FakeSource(session.cells.at_work, tells_news=False)
    return source
