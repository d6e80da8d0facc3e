"""Between processes that have actors: spawning, interrupts, supervision, memory of one another."""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request


class Release(ControlMessage, verb="release"):
    """The receiver of shared memory needs it no longer. `holders`: a gateway says so for these of
    other hosts, each the first of so many processes; None: the sender itself."""

    segment: int
    holders: list[tuple[int, int]] | None = None


class SpawnActor(ControlMessage, verb="spawn_actor"):
    """Construct an actor; its pickled class and arguments are in the buffers. Its rank is that of
    the message, counted from `rank`, so that all ranks can be sent the same."""

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
    restarts: bool = False
    """True: when it has failed, its owner sends this again; calls wait for that."""


class StopActor(Request[Done], verb="stop_actor"):
    """Answered when it has ended."""

    port: int
    reason: str


class Interrupt(ControlMessage, verb="interrupt"):
    """Give up calls of the sender to an actor, newest first; `running`: whatever runs there."""

    port: int
    replies: list[int]
    running: bool = False


class Booted(NamedTuple):
    """The process is up, or what its bootstrap function raised."""

    unbooted: ErrorRecord | None = None


class AwaitBoot(Request[Booted], verb="booted"):
    """Answered when the bootstrap function has run."""


class Fence(Request[Done], verb="fence"):
    """Answered at once: what was sent before has arrived."""


class Undelivered(ControlMessage, verb="undelivered"):
    """To a sender: nobody got this message of its."""

    sender: int
    what: str
    dest: str
    why: str


class ActorFailed(ControlMessage, verb="actor_failed"):
    """To the owner. The error's envelope is in the buffers."""

    port: int
    text: str


class Healed(ControlMessage, verb="healed"):
    """Numbers of meshes, and their processes now. Passed on downwards."""

    moved: list[tuple[int, list[int]]]


class NotRestarted(ControlMessage, verb="not_restarted"):
    """These ranks of a mesh come back by themselves no more, and why. Passed on downwards."""

    number: int
    ranks: list[int]
    why: str


class Regroup(Request[Done], verb="regroup"):
    """Who a rank is after a heal or with other hosts, and where process groups meet. With
    `keeps_groups` those that there are will be connected again: only the place changes."""

    store: str
    rank: int
    world_size: int
    labels: list[str]
    sizes: list[int]
    spans_hosts: bool = False  # it does now: process groups need a network
    keeps_groups: bool = False


class Reloaded(NamedTuple):
    """Modules that were loaded again, and those that failed with why."""

    reloaded: list[str]
    failed: list[tuple[str, str]]


class WorkspaceSynced(Request[Reloaded], verb="workspace"):
    """A sync has ended: local folders and their places, and which files have changed."""

    pairs: list[tuple[str, str]]
    packages: str | None
    root: str
    changed: list[str]
    reload: bool


class SetLogLevel(ControlMessage, verb="logging"):
    """Set the level of Python's root logger on a rank."""

    level: int


class AggregateOutput(ControlMessage, verb="logging_option"):
    """To the controller: fold what these processes print, `window_s` at a time; None: do not."""

    procs: list[int]
    name: str
    window_s: float | None


class OfferTensor(Request[Done], verb="tensor_offer"):
    """Answered when it was received. The offer is in the buffers."""

    tag: int


class ReadBuffer(Request[Done], verb="buffer_read"):
    """Answered with the bytes in the buffers."""

    serial: int
    offset: int
    size: int


class WriteBuffer(Request[Done], verb="buffer_write"):
    """The bytes are in the buffers."""

    serial: int
    offset: int


class DropBuffer(Request[Done], verb="buffer_drop"):
    """Let go of registered memory."""

    serial: int
