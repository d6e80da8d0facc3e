"""From what is seen of the meshes to messages: the whole `state`, or a `delta` from any update.

Pure: no thread, no clock, no I/O; times come in. What has not changed is the same object in the
snapshot, so most of it is skipped by `is`. A delta is made once for all channels that need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from monarch_nb.notebook.view.browser.protocol import VERSION
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, Json, plain
from monarch_nb.notebook.view.feed.inputs import FeedInputs, View
from monarch_nb.notebook.view.feed.mesh_feed import SECONDS, MeshFeed, Where

if TYPE_CHECKING:
    from monarch_nb.control.status.snapshots import MeshStatus

SLOWLY_S: Final = 1.0
_KEPT_GONE: Final = 64  # meshes that are remembered as gone


class Feed:
    """`update` it, then ask for a `state` or a `delta`.

    `n` counts the updates that changed something; `malformed` counts messages of browsers that
    were none. `began`: the `time.monotonic()` at which the feed's clock is 0.
    """

    def __init__(self, began: float, where: Where = lambda _: "") -> None:
        self.n = 1
        self.malformed = 0
        self.seconds = 0
        self._began = began
        self._where = where
        self._at = 0
        self._slow_at = began - SLOWLY_S
        self._meshes: dict[str, MeshFeed] = {}
        self._gone: dict[str, int] = {}
        self._floor = 0  # deltas from before this update could miss something
        self._inputs = FeedInputs()
        self._hosts_n = self._cell_n = self._current_n = self._jobs_n = 1
        self._ended: deque[int] = deque(maxlen=SECONDS)  # the update of each second that ended
        self._deltas: dict[tuple[int, View], Json] = {}

    @property
    def hosts(self) -> int:
        """How many hosts the ranks are on."""
        return len(self._inputs.snapshot.hosts)

    def count_malformed(self) -> None:
        self.malformed += 1

    def clock(self, time_s: float) -> int:
        """Return milliseconds since the feed began."""
        return round((time_s - self._began) * 1000)

    def update(self, inputs: FeedInputs, now: float) -> None:
        """Take what is seen now."""
        self._at, n = self.clock(now), self.n + 1
        self._deltas.clear()
        changed = self._update_top(inputs, n)
        seen = _by_name(inputs.snapshot.meshes)
        for name in [name for name in self._meshes if name not in seen]:
            self._forget(name, n)
            changed = True
        slowly = now - self._slow_at >= SLOWLY_S
        self._slow_at = now if slowly else self._slow_at
        for name, status in seen.items():
            changed |= self._update_mesh(name, status, inputs, n, slowly)
        if changed:
            self.n = n

    def state(self, to: str, view: View) -> Json:
        """Return everything, for a client that begins."""
        return {
            "v": VERSION,
            "type": "state",
            "to": to,
            "n": self.n,
            "at": self._at,
            "seconds": self.seconds,
            "hosts": self._hosts(),
            "meshes": {
                plain(name, MAX_WHAT): mesh.whole(view.parts)
                for name, mesh in self._meshes.items()
                if view.shows(name)
            },
            "cell": self._cell(),
            "current": self._current(),
            "jobs": self._jobs(),
        }

    def delta(self, base: int, view: View) -> Json | None:
        """Return what is new since the update `base`, empty if nothing; None if that is too old."""
        floor = max([self._floor, *(mesh.floor for mesh in self._meshes.values())])
        if not floor <= base <= self.n:
            return None
        if (base, view) not in self._deltas:
            self._deltas[base, view] = self._made(base, view)
        return self._deltas[base, view]

    # ------------------------------------------------------------------------------ updating

    def _update_top(self, inputs: FeedInputs, n: int) -> bool:
        before, self._inputs = self._inputs, inputs
        changed = False
        if inputs.snapshot.hosts is not before.snapshot.hosts and (
            inputs.snapshot.hosts != before.snapshot.hosts
        ):
            self._hosts_n, changed = n, True
        if inputs.cell != before.cell:
            self._cell_n, changed = n, True
        if inputs.current != before.current:
            self._current_n, changed = n, True
        if inputs.jobs != before.jobs:
            self._jobs_n, changed = n, True
        return changed

    def _update_mesh(
        self, name: str, status: MeshStatus, inputs: FeedInputs, n: int, slowly: bool
    ) -> bool:
        mesh = self._meshes.get(name)
        changed = mesh is None or not mesh.is_of(status)
        if mesh is None or changed:
            mesh = self._meshes[name] = MeshFeed(status, n, self.clock, self._where)
            self._gone.pop(name, None)
            mesh.update(status, inputs, n)
            mesh.update_slowly(inputs, n)
            mesh.ended_seconds()
            return True
        changed = mesh.update(status, inputs, n)
        if slowly:
            changed |= mesh.update_slowly(inputs, n)
        return self._count_seconds(mesh, n) or changed

    def _count_seconds(self, mesh: MeshFeed, n: int) -> bool:
        # A second has ended when it has for the mesh that is ahead
        ended = mesh.ended_seconds()
        if ended <= 0:
            return False
        news = max(ended - self._ended_since(n - 1), 0)
        self._ended.extend([n] * min(news, SECONDS))
        self.seconds += news
        return True

    def _ended_since(self, base: int) -> int:
        # How many seconds have ended since that update
        count = 0
        for n in reversed(self._ended):
            if n <= base:
                break
            count += 1
        return count

    def _forget(self, name: str, n: int) -> None:
        del self._meshes[name]
        self._gone[name] = n
        if len(self._gone) > _KEPT_GONE:
            self._floor = self._gone.pop(next(iter(self._gone)))

    # ------------------------------------------------------------------------------- telling

    def _made(self, base: int, view: View) -> Json:
        news: Json = {}
        if self._hosts_n > base:
            news["hosts"] = self._hosts()
        if self._cell_n > base:
            news["cell"] = self._cell()
        if self._current_n > base:
            news["current"] = self._current()
        if self._jobs_n > base:
            news["jobs"] = self._jobs()
        ended = self._ended_since(base)
        if meshes := self._news_of_meshes(base, view, ended):
            news["meshes"] = meshes
        if not news:
            return {}
        if any("strip" in told or "strips" in told for told in meshes.values() if told):
            news["seconds"] = self.seconds
        head = {"v": VERSION, "type": "delta", "base": base, "n": self.n, "at": self._at}
        return head | news

    def _news_of_meshes(self, base: int, view: View, ended: int) -> dict[str, Json | None]:
        found: dict[str, Json | None] = {
            plain(name, MAX_WHAT): None
            for name, n in self._gone.items()
            if n > base and view.shows(name)
        }
        for name, mesh in self._meshes.items():
            if view.shows(name):
                news = mesh.since(base, view.parts) | mesh.strips_since(base, ended, view.parts)
                if news:
                    found[plain(name, MAX_WHAT)] = news
        return found

    def _hosts(self) -> list[Json]:
        return [
            {"name": plain(host.name, MAX_WHAT), "ended": host.ended and plain(host.ended)}
            for host in self._inputs.snapshot.hosts
        ]

    def _cell(self) -> Json | None:
        cell = self._inputs.cell
        if cell is None:
            return None
        return {
            "number": cell.number,
            "id": cell.id,
            "since": max(self.clock(cell.since), 1),
            "watched": cell.is_watched,
        }

    def _jobs(self) -> list[Json]:
        return [
            {
                "job": job.number,
                "mesh": plain(job.mesh, MAX_WHAT),
                "engine": plain(job.engine, MAX_WHAT),
                "id": plain(job.id, MAX_WHAT),
                "said": plain(job.said),
                "state": job.state,
                "hosts": job.hosts,
                "enough": job.enough,
                "ends": None if job.ends_at is None else round(job.ends_at * 1000),
            }
            for job in self._inputs.jobs
        ]

    def _current(self) -> str | None:
        return self._inputs.current and plain(self._inputs.current, MAX_WHAT)


def _by_name(meshes: Iterable[MeshStatus]) -> dict[str, MeshStatus]:
    found: dict[str, MeshStatus] = {}
    for mesh in meshes:
        if mesh.ended is None or mesh.name not in found or found[mesh.name].ended is not None:
            found[mesh.name] = mesh
    return found
