"""Between processes that have actors: spawning, interrupts, supervision, memory of one another."""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages.codec import Done, verb


@verb("release")
class Release(NamedTuple):
    """The receiver of shared memory needs it no longer."""

    segment: int


@verb("spawn_actor")
class SpawnActor(NamedTuple):
    """Construct an actor; its pickled class and arguments are in the buffers."""

    port: int
    name: str
    class_name: str
    labels: list[str]
    sizes: list[int]
    rank: int
    owner: tuple[int, int]
    creator: str
    sync: bool
    main: bool = True
    """True: the actor may take the main thread of its rank."""


@verb("stop_actor")
class StopActor(NamedTuple):
    """Answered when it has ended."""

    port: int
    reason: str

    def answer(self) -> type[Done]:
        return Done


@verb("interrupt")
class Interrupt(NamedTuple):
    """Give up calls of the sender to an actor, newest first; `running`: whatever runs there."""

    port: int
    replies: list[int]
    running: bool = False


class Booted(NamedTuple):
    """The process is up, or what its bootstrap function raised."""

    unbooted: ErrorRecord | None = None


@verb("booted")
class AwaitBoot(NamedTuple):
    """Answered when the bootstrap function has run."""

    def answer(self) -> type[Booted]:
        return Booted


@verb("fence")
class Fence(NamedTuple):
    """Answered at once: what was sent before has arrived."""

    def answer(self) -> type[Done]:
        return Done


@verb("undelivered")
class Undelivered(NamedTuple):
    """To a sender: nobody got this message of its."""

    sender: int
    what: str
    dest: str
    why: str


@verb("actor_failed")
class ActorFailed(NamedTuple):
    """To the owner. The error's envelope is in the buffers."""

    port: int
    text: str


@verb("healed")
class Healed(NamedTuple):
    """Numbers of meshes, and their processes now. Passed on downwards."""

    moved: list[tuple[int, list[int]]]


@verb("regroup")
class Regroup(NamedTuple):
    """Who a rank is after a heal, and where process groups meet."""

    store: str
    rank: int
    world_size: int
    labels: list[str]
    sizes: list[int]

    def answer(self) -> type[Done]:
        return Done


class Reloaded(NamedTuple):
    """Modules that were loaded again, and those that failed with why."""

    reloaded: list[str]
    failed: list[tuple[str, str]]


@verb("workspace")
class WorkspaceSynced(NamedTuple):
    """A sync has ended: local folders and their places, and which files have changed."""

    pairs: list[tuple[str, str]]
    packages: str | None
    root: str
    changed: list[str]
    reload: bool

    def answer(self) -> type[Reloaded]:
        return Reloaded


@verb("logging")
class SetLogLevel(NamedTuple):
    """Set the level of Python's root logger on a rank."""

    level: int


@verb("logging_option")
class AggregateOutput(NamedTuple):
    """To the controller: fold what these processes print, `window_s` at a time; None: do not."""

    procs: list[int]
    name: str
    window_s: float | None


@verb("tensor_offer")
class OfferTensor(NamedTuple):
    """Answered when it was received. The offer is in the buffers."""

    tag: int

    def answer(self) -> type[Done]:
        return Done


@verb("buffer_read")
class ReadBuffer(NamedTuple):
    """Answered with the bytes in the buffers."""

    serial: int
    offset: int
    size: int

    def answer(self) -> type[Done]:
        return Done


@verb("buffer_write")
class WriteBuffer(NamedTuple):
    """The bytes are in the buffers."""

    serial: int
    offset: int

    def answer(self) -> type[Done]:
        return Done


@verb("buffer_drop")
class DropBuffer(NamedTuple):
    """Let go of registered memory."""

    serial: int

    def answer(self) -> type[Done]:
        return Done
