"""The one snapshot of every mesh: magics, widgets and tests read the same immutable value.

What ranks do comes from the boards of their hosts, sampled only while somebody looks: for some
seconds after a snapshot, or as long as a watch is open, which also keeps timelines. What has died
comes from supervision, at once. Any thread may take a snapshot.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monarch_nb.control.status.boards import Boards
from monarch_nb.control.status.mesh_view import MeshView, Sources
from monarch_nb.control.status.snapshots import MeshStatus, Snapshot
from monarch_nb.control.status.timeline import Timeline
from monarch_nb.core.wire.messages.agents import Board, Spawned, WatchBoard, Watched
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.meshes.states import ProcsState
from monarch_nb.process.exit import Exit

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc
    from monarch_nb.process.supervision.supervision import Supervision

OnNews = Callable[[bool], None]
"""Told of something new, with True where it is urgent: a rank has died or has stopped at a
breakpoint, or a mesh has come."""

LOOK_S: Final = 0.3  # how long a snapshot waits for the first sample
KEEP_LOOKING_S: Final = 5.0
HURRY_S: Final = 0.5
FASTEST_S: Final = 0.1
SLOWEST_S: Final = 1.0  # timelines want a sample each second
_HOST_S: Final = 0.001
"""What a sample costs the controller for each host is about a twentieth of that."""


def affordable_s(wanted_s: float, hosts: int) -> float:
    """Return the period between two samples of all these hosts: longer than is wanted where there
    are so many that the controller would do nothing else.

    Example:
        >>> affordable_s(0.1, hosts=4), affordable_s(0.1, hosts=1000)
        (0.1, 1.0)
    """
    return max(wanted_s, hosts * _HOST_S)


class Watch:
    """Somebody looks, until `close`."""

    def __init__(self, service: StatusService, period_s: float, on_news: OnNews) -> None:
        self.period_s = min(SLOWEST_S, max(FASTEST_S, period_s))
        self.on_news = on_news
        self._service = service

    def close(self) -> None:
        """End it. Harmless when repeated."""
        self._service.end_watch(self)


class StatusService:
    def __init__(self, proc: Proc, supervision: Supervision) -> None:
        self._proc = proc
        self._supervision = supervision
        self._boards = Boards()
        self._sources = Sources(self._boards, proc.dead, supervision.silent)
        self._hosts = self._sources.hosts
        self._hosts.name(proc.agent, socket.gethostname())
        self._views: dict[int, MeshView] = {}  # by number of the mesh
        self._watches: list[Watch] = []
        self._looking_until = self._hurry_until = 0.0
        self._asked: dict[int, float] = {}  # agents that sample, and how often
        self._awaited: set[int] = set()  # ranks that a snapshot has waited for
        self._began = time.monotonic()
        self._ticking: threading.Thread | None = None
        self._over = threading.Event()
        self._lock = threading.RLock()
        supervision.on_exit.append(self._on_exit)

    def name_places(self, name: Callable[[str], str]) -> None:
        """Let `name("123.py:5 step()")` say what people call that place; cells have such files."""
        self._sources.name_places(name)

    def place_name(self, place: str) -> str:
        """Return what people call a place: `Cell In[4]:5 step()` for `123.py:5 step()`."""
        return self._sources.name_place(place)

    # the inbox thread

    def on_spawned(self, spawned: Spawned, _: Message) -> None:
        """Note ranks that have been forked."""
        for process, pid in zip(spawned.procs, spawned.pids, strict=True):
            self._sources.pids[process] = pid
            self._boards.touch(process)
        self._spread(urgent=True)

    def on_board(self, board: Board, message: Message) -> None:
        """Take changed records of a board."""
        if message.source in self._asked:
            is_urgent = self._boards.tell(message.source, board, time.monotonic())
            self._spread(urgent=is_urgent)

    def hurry(self) -> None:
        """Sample fast for a moment, if somebody looks: the state of a rank is about to change."""
        self._hurry_until = time.monotonic() + HURRY_S
        self._spread(urgent=True)

    def _on_exit(self, ended: Exit) -> None:
        self._sources.ended_at[ended.process] = time.monotonic()
        self._boards.touch(ended.process)
        self._spread(urgent=True)

    def _spread(self, *, urgent: bool) -> None:
        for watch in tuple(self._watches):
            watch.on_news(urgent)

    # any thread

    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """Return the state of every mesh that the client owns.

        The first of a while waits for what agents tell, `LOOK_S` at most. So does a `fresh` one:
        what a rank has done before an answer that has come here, it tells. Others tell what was
        sampled last.
        """
        with self._lock:
            if not self._watches:
                self._looking_until = time.monotonic() + KEEP_LOOKING_S
            meshes = self._refresh()
            asked = self._ask(anew=fresh)
            missing = self._missing()
            if not fresh and not missing:
                return self._snapshot_of(meshes)
        unheard = asked if fresh else ()
        self._boards.wait_for(lambda: not unheard and self._have_told(missing), LOOK_S)
        with self._lock:
            return self._snapshot_of(self._refresh())

    def _snapshot_of(self, meshes: tuple[MeshStatus, ...]) -> Snapshot:
        return Snapshot(meshes, self._hosts.told(self._sources.dead), time.monotonic())

    def watch(self, period_s: float, on_news: OnNews = lambda _: None) -> Watch:
        """Have all ranks sampled this often (0.1 s to 1 s) and keep timelines, until it is closed.

        Of several watches the fastest counts. `on_news` is called on the inbox thread when a
        snapshot would show something new of what ranks do; it returns at once.
        """
        made = Watch(self, period_s, on_news)
        with self._lock:
            self._watches.append(made)
            self._refresh()
            self._ask()
        return made

    def end_watch(self, watch: Watch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)
                self._ask()

    def timeline(self, mesh: str) -> Timeline:
        """Return what the ranks of a mesh did in the last seconds; of an unknown one, nothing."""
        with self._lock:
            self._refresh()
            return self.timelines().get(mesh) or Timeline(0, self._seconds())

    def timelines(self) -> dict[str, Timeline]:
        """Return those of all meshes of the last snapshot, by name; of one name, one that is up."""
        with self._lock:
            views = sorted(self._views.values(), key=lambda view: view.state.ended is None)
            return {view.state.name: view.timeline for view in views}

    def close(self) -> None:
        """End the sampling: nobody looks any more."""
        with self._lock:
            self._over.set()
            ticking = self._ticking
        if ticking is not None and ticking is not threading.current_thread():
            ticking.join(LOOK_S)

    # who looks

    def _period_s(self, hosts: int) -> float | None:
        if not self._looks():
            return None
        wanted = min((watch.period_s for watch in self._watches), default=FASTEST_S)
        return affordable_s(FASTEST_S if self._is_hurrying() else wanted, hosts)

    def _looks(self) -> bool:
        return bool(self._watches) or time.monotonic() < self._looking_until

    def _is_hurrying(self) -> bool:
        is_there = all(view.state.initialized.done() for view in self._views.values())
        return not is_there or time.monotonic() < self._hurry_until

    def _ask(self, *, anew: bool = False) -> set[int]:
        # Those who are asked now, because the period is another one, or `anew`; who has answered
        # leaves the set
        proc = self._proc
        agents = {agent for view in self._views.values() for agent in view.agents}
        period_s = self._period_s(len(agents))
        looks = period_s is not None and not proc.closed
        wanted = {agent for agent in agents if agent not in proc.dead} if looks else set()
        for agent in self._asked.keys() - wanted:
            del self._asked[agent]
            if agent not in proc.dead and not proc.closed:
                proc.control(agent, WatchBoard(on=False))
        unheard: set[int] = set()
        for agent in wanted:
            if anew or self._asked.get(agent) != period_s:
                self._asked[agent] = period_s or FASTEST_S
                unheard.add(agent)
                self._begin(agent, self._asked[agent], unheard)
        if not self._asked:
            self._awaited.clear()
            self._boards.clear()
        if period_s is not None:
            self._tick_on()
        return unheard

    def _begin(self, agent: int, period_s: float, unheard: set[int]) -> None:
        def answered(answer: Watched | Refused) -> None:
            if isinstance(answer, Watched):
                self._hosts.name(agent, answer.host)
            unheard.discard(agent)
            self._boards.wake()

        self._proc.ask(agent, WatchBoard(True, period_s), answered)

    def _missing(self) -> set[int]:
        # each is waited for once
        found = {each for view in self._views.values() for each in view.missing} - self._awaited
        self._awaited |= found
        return found

    def _have_told(self, processes: set[int]) -> bool:
        rows, dead = self._boards.rows, self._sources.dead
        return all(each in rows or each in dead for each in processes)

    # meshes

    def _refresh(self) -> tuple[MeshStatus, ...]:
        changed = self._boards.take_changed()
        states = {
            state.number: state
            for state in list(self._supervision.states.values())
            if isinstance(state, ProcsState)
        }
        if [*self._views] != [*states] or any(
            view.state is not states[number] for number, view in self._views.items()
        ):
            self._views = {number: self._view(state) for number, state in states.items()}
        told = []
        for view in self._views.values():
            status = view.status(changed)
            if not view.is_over():
                told.append(status)
        return tuple(told)

    def _view(self, state: ProcsState) -> MeshView:
        known = self._views.get(state.number)
        if known is not None and known.state is state:
            return known
        return MeshView(state, self._sources, self._seconds())

    # once a second, while somebody looks

    def _tick_on(self) -> None:
        if self._ticking is None and not self._over.is_set():
            self._ticking = threading.Thread(target=self._tick, name="monarch-status", daemon=True)
            self._ticking.start()

    def _tick(self) -> None:
        while not self._over.wait(1.0 - (time.monotonic() - self._began) % 1.0):
            with self._lock:
                self._ask()
                if not self._looks():
                    self._ticking = None
                    return
                self._forget()
                if self._watches:
                    self._feed()

    def _feed(self) -> None:
        self._refresh()
        now, seconds = time.monotonic(), self._seconds()
        for view in self._views.values():
            view.timeline.feed(seconds, now, view.samples())

    def _seconds(self) -> int:
        return int(time.monotonic() - self._began)

    def _forget(self) -> None:
        known = {each for view in self._views.values() for each in view.state.processes}
        self._boards.keep(known)
        self._awaited &= known
