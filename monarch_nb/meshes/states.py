"""What is known of one spawn of processes or actors, by whoever holds a handle of it.

Rule: state and nothing that acts; the handles (`ProcMesh`, `ActorMesh`) wrap it, `spawning.py` and
`healing/` change it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from monarch_nb.core.shape.extent import Shape
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.meshes.restarting.intensity import Intensity
from monarch_nb.process import current
from monarch_nb.process.futures.future import Future, completed
from monarch_nb.process.process import agent_of
from monarch_nb.process.supervision.moved_ranks import MovedRanks
from monarch_nb.process.supervision.supervision import MeshState, Supervision


class HandleToken:
    """Kept by every handle of a mesh and what lives on it; when the last goes, it is garbage.

    So the first handle is made before a mesh can be found by its name: whoever finds it so has one
    for a moment, which must not be the last.
    """

    __slots__ = ("__weakref__",)


class Seat(NamedTuple):
    """A place for a rank: the agent of the host, and which of its GPUs there are for it."""

    agent: int
    slot: int


class Resized(NamedTuple):
    """A mesh in the place of one on fewer or more hosts. `start(ranks)` spawns new ranks."""

    state: ProcsState
    start: Callable[[list[int]], None]
    spans_hosts: bool


@dataclass(eq=False, repr=False, kw_only=True)
class ProcsState(MeshState):
    """One spawn of processes. `watch(token, state)` sees to it that it is stopped with its last
    handle; None: it is not.

    Of a mesh of this process's own, by rank: `homes`, where each was spawned; `slots`, as in
    `Seat`; `chosen_gpus`, its CUDA_VISIBLE_DEVICES where that is given. `moves` says which ranks
    the last heal has started on other hosts, `restarting` which come back by themselves, and why.
    """

    kind = "proc"
    agents: list[int]
    homes: list[Seat] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    chosen_gpus: list[str | None] = field(default_factory=list)
    moves: list[str] = field(default_factory=list, init=False)
    restarting: Mapping[int, str] = field(default_factory=dict, init=False)
    pids: dict[int, int] = field(default_factory=dict)
    actors: list[ActorsState] = field(default_factory=list)
    generation: int = 0
    watch: Callable[[HandleToken, ProcsState], weakref.ref[HandleToken]] | None = None
    initialized: Future[bool] = field(default_factory=lambda: completed(True), init=False)
    respawn: Callable[[list[int]], Future[bool]] | None = field(default=None, init=False)
    resized: Callable[[Sequence[int]], Resized] | None = field(default=None, init=False)
    shared: bool = field(default=False, init=False)
    streams: dict[str, object] = field(default_factory=dict, init=False)  # of tensors: engines
    _token: weakref.ref[HandleToken] | None = field(default=None, init=False)

    def start(self, spawn: Callable[[list[int]], Future[bool]], ranks: list[int]) -> None:
        """Spawn these processes; a heal spawns lost ones again."""
        self.respawn = spawn
        self.initialized = spawn(ranks)

    def resized_by(self, resized: Callable[[Sequence[int]], Resized]) -> None:
        """Note what makes the same mesh on other hosts, by their agents."""
        self.resized = resized

    def take_over(self, old: ProcsState) -> None:
        """Have the first ranks of a mesh, wherever they are, and the actors that live on it."""
        count = min(len(old.processes), len(self.processes))
        for rank in range(count):
            self.take_seat(rank, old.seat(rank), old.processes[rank])
            self.homes[rank] = old.homes[rank]
        self.pids = {rank: pid for rank, pid in old.pids.items() if rank < count}
        self.actors = old.actors
        self.generation = old.generation + 1
        self.shared = old.shared

    def seat(self, rank: int) -> Seat:
        """Return where a rank is, or was."""
        return Seat(self.agents[rank], self.slots[rank])

    def take_seat(self, rank: int, seat: Seat, process: int) -> None:
        """Have a rank be this process from now on."""
        self.agents[rank], self.slots[rank] = seat
        self.processes[rank] = process

    def follow(self, processes: Sequence[int]) -> None:
        for rank, process in enumerate(processes[: len(self.agents)]):
            host = process >> HOST_SHIFT
            if host != self.agents[rank] >> HOST_SHIFT:  # a host of others has one agent
                self.agents[rank] = agent_of(host)
        super().follow(processes)

    def note_moves(self, moves: list[str]) -> None:
        self.moves = moves

    def note_restarts(self, ranks: Iterable[int], why: str) -> None:
        """Note that new processes take the place of these, as those before ended so."""
        self.restarting = {**self.restarting, **dict.fromkeys(ranks, why)}

    def end_restarts(self, ranks: Iterable[int]) -> None:
        """Note that what lives on these is there, or will not come."""
        over = set(ranks)
        self.restarting = {rank: why for rank, why in self.restarting.items() if rank not in over}

    def share(self) -> None:
        """Note that a handle goes to another process: the mesh lives as long as its owner."""
        self.shared = True

    def next_generation(self) -> None:
        """Let process groups meet at another place from now on."""
        self.generation += 1

    def check_not_stopped(self) -> None:
        self.check_driven()
        if self.ended is not None:
            raise RuntimeError(f"`ProcMesh` has already been stopped: {self.name!r}, {self.ended}")

    def store(self) -> str:
        """Name the place where process groups meet now."""
        return f"{self.number:x}-{self.generation}"

    def token(self) -> HandleToken | None:
        """Return that of the handles; None where garbage collection means nothing."""
        if self.watch is None:
            return None
        found = self._token() if self._token is not None else None
        if found is None:
            found = HandleToken()
            self._token = self.watch(found, self)
        return found

    @property
    def is_garbage(self) -> bool:
        """Tell whether it runs and nobody can ever refer to it again."""
        is_held = self._token is not None and self._token() is not None
        is_over = self.ended is not None or self.only_seen is not None
        return not (self.shared or is_held or is_over)


@dataclass(eq=False, repr=False, kw_only=True)
class ActorsState(MeshState):
    """One spawn of actors. `number` is their port, the same in every process of the mesh.
    `restarts`: how often each rank of them is started again; None: never."""

    kind = "actor"
    cls: type
    restarts: Intensity | None = None
    procs: ProcsState | None = None
    proc_ranks: tuple[int, ...] = ()  # in `procs`, of the processes it was spawned on
    initialized: Future[None] = field(default_factory=lambda: completed(None), init=False)
    respawn: Callable[[list[int]], Future[None]] | None = field(default=None, init=False)

    @property
    def keeps_nothing(self) -> bool:
        """Tell whether these are the runtime's own, and are as good when they are made again."""
        return getattr(self.cls, "keeps_nothing", False)

    def restart_no_more(self) -> None:
        """Have what is lost from now on be lost."""
        self.restarts = None

    def move_to(self, procs: ProcsState) -> None:
        """Live on a mesh that has taken the place of theirs, whose first ranks are the same."""
        self.procs = procs

    def start(
        self, first: Callable[[], Future[None]], again: Callable[[list[int]], Future[None]]
    ) -> None:
        """Construct all by `first`; a heal constructs the lost ones by `again`."""
        self.respawn = again
        self.initialized = first()


def procs_of(state: MeshState) -> ProcsState | None:
    """Return the mesh of processes that this is, or that these actors are on; None where it is not
    known here."""
    if isinstance(state, ActorsState):
        return state.procs
    return state if isinstance(state, ProcsState) else None


S = TypeVar("S", bound=MeshState)


def known_here(state: S) -> S:
    """Return the state that this process has of the same mesh; else this one, kept up to date."""
    runtime = current.running()
    if runtime is None:
        return state
    known = runtime.parts[Supervision].states.get(state.number)
    if isinstance(known, type(state)):
        return known
    runtime.parts[MovedRanks].adopt(state)
    return state


@dataclass(frozen=True)
class Part:
    """Some ranks of a mesh of processes. Who has it uses the mesh, which is not garbage then."""

    state: ProcsState
    shape: Shape
    token: HandleToken | None

    @property
    def ranks(self) -> list[int]:
        return self.shape.ranks()

    @property
    def processes(self) -> list[int]:
        return [self.state.processes[rank] for rank in self.ranks]

    def reference(self) -> tuple[Any, ...]:
        """Return what a handle of it pickles as."""
        state = self.state
        processes = list(state.processes)
        return state.number, state.name, state.shape, processes, state.agents, self.shape


class StoreName(NamedTuple):
    """Names a place where process groups meet: the mesh, and its generation."""

    mesh: int
    generation: int

    @staticmethod
    def from_text(text: str) -> StoreName:
        """Read what `ProcsState.store` has made; a script puts a name of its run behind it. Raises
        `ValueError` for anything else."""
        mesh, _, rest = text.partition("-")
        generation = rest.partition("-")[0]
        try:
            return StoreName(int(mesh, 16), int(generation))
        except ValueError:
            raise ValueError(f"{text!r:.80} is no place where process groups meet") from None


class Place(NamedTuple):
    """A rank of a mesh. `number` tells meshes of the same name apart; `state` is None for a
    process of no mesh that is known here."""

    mesh: str
    rank: int
    size: int
    number: int
    state: ProcsState | None


def newest_of(supervision: Supervision, name: str) -> ProcsState | None:
    """Return the processes that were spawned last under this name; None where none are known."""
    states = [
        state
        for state in list(supervision.states.values())
        if isinstance(state, ProcsState) and state.name == name
    ]
    return states[-1] if states else None


def place_of(supervision: Supervision, process: int) -> Place:
    for state in list(supervision.states.values()):
        if isinstance(state, ProcsState) and process in state.processes:
            rank, size = state.processes.index(process), len(state.processes)
            return Place(state.name, rank, size, state.number, state)
    return Place(f"process {process:x}", 0, 1, process, None)
