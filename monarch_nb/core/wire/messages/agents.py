"""To the agent of a host, and from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request

Row = list[Any]
"""Of a board: `[process, state, since_ns, what, busy_ns, queue, calls, failed, beat]`, or of usage.
Kept as it came: there are a thousand of them ten times a second, and few are looked at."""


class Spawn(Request[Done], verb="spawn"):
    """Fork ranks, or start them by commands. The bootstrap pickle is in the buffers."""

    procs: list[int]
    owner: int | None = None
    ranks: list[int] | None = None
    world_size: int | None = None
    ready_port: int | None = None
    mesh: int | None = None
    name: str | None = None
    labels: list[str] | None = None
    sizes: list[int] | None = None
    host_size: int | None = None
    env: dict[str, str | None] | None = None
    rank_env: list[dict[str, str | None] | None] | None = None
    commands: list[Any] | None = None  # checked where they are looked for
    python: dict[str, Any] | None = None
    cwd: str | None = None
    path: list[str] | None = None
    store: str | None = None
    slots: list[int] | None = None  # which of the host's GPUs, counted on when there are fewer
    own_gpu: list[bool] | None = None  # it sees that one only
    shares_gpus: bool | None = None  # ranks have the same GPU; None: if the host has too few
    config: dict[str, Any] | None = None
    bind: list[Any] | None = None
    libraries: list[str] | None = None  # that each shall find loaded
    spans_hosts: bool = False  # the mesh: its process groups need a network


class LoadLibraries(ControlMessage, verb="load"):
    """Ranks that are spawned from now on, or have no process yet, shall find these loaded. `soon`:
    and what first uses of them import, though ranks are busy: one may be needed at once."""

    libraries: list[str]
    soon: bool = False


class Stop(Request[Done], verb="stop"):
    """Answered when all are gone."""

    procs: list[int]
    grace_s: float | None = None


class Kill(Request[Done], verb="kill"):
    """Send a signal to ranks."""

    procs: list[int]
    signal: int = 9


class Watch(Request[Done], verb="watch"):
    """The sender wants to know of the ends and pulses of these."""

    procs: list[int]


class Watched(NamedTuple):
    """The name of the host whose board is watched."""

    host: str


class WatchBoard(Request[Watched], verb="status"):
    """Begin, or end, to be sent the board."""

    on: bool
    period_s: float | None = None


class Taken(ControlMessage, verb="taken"):
    """So many bytes of raw output were handled."""

    bytes: int


class Drain(Request[Done], verb="drain"):
    """Answered when all has gone on that these ranks have written to their descriptors."""

    procs: list[int]


class LastLines(NamedTuple):
    """The last lines of a rank's raw standard streams."""

    text: str


class GetLastLines(Request[LastLines], verb="tail"):
    """Of a living rank."""

    proc: int


class DumpStacks(Request[Done], verb="dump"):
    """Have ranks write where their threads are."""

    procs: list[int]


class StackDumps(NamedTuple):
    """What ranks have written, by process."""

    texts: dict[str, str]


class GetStackDumps(Request[StackDumps], verb="dumped"):
    """What these have written since the last `DumpStacks`."""

    procs: list[int]


class NativeStacks(NamedTuple):
    """Of each process a text of py-spy, or why there is none."""

    dumps: dict[str, tuple[str, str]]


class GetNativeStacks(Request[NativeStacks], verb="native"):
    """Answered when py-spy has told of all."""

    procs: list[int]


class BoardRows(NamedTuple):
    """Rows as in `Board`, read at `now_ns`."""

    now_ns: int
    rows: list[Row]


class GetBoardRows(Request[BoardRows], verb="rows"):
    """Of these ranks."""

    procs: list[int]


class Here(NamedTuple):
    """The agent is there. `malformed` counts messages that were none."""

    pid: int
    host: str
    malformed: int


class Hello(Request[Here], verb="hello"):
    """Whether the agent is there."""


class StopAll(Request[Done], verb="stop_all"):
    """As `Stop`, for every rank of the host."""

    grace_s: float | None = None


class Shutdown(Request[Done], verb="shutdown"):
    """Stop every rank, then end the agent."""

    grace_s: float | None = None


# from an agent


class Ready(ControlMessage, verb="ready"):
    """The zygote is up: its process, how long it took to load and how many threads it has; `gpus`:
    the names of those of the host."""

    pid: int
    host: str
    versions: dict[str, Any]
    preload_s: float
    threads: int
    zygote: int
    gpus: list[str]


class ZygoteFailed(ControlMessage, verb="failed"):
    """The zygote could not start, or died; these ranks end, which are all that there were."""

    stage: str
    text: str
    procs: list[int]


class Spawned(ControlMessage, verb="spawned"):
    """Ranks have processes."""

    procs: list[int]
    pids: list[int]


class Exited(ControlMessage, verb="exited"):
    """How a rank ended, as its agent saw it.

    `unreachable_s`: it was silent for so long; `for_good`: its host was never there.
    """

    proc: int
    pid: int | None
    code: int | None
    signal: int | None
    reason: str | None
    tail: str
    oom: bool
    unreachable_s: float | None
    asked: bool
    for_good: bool = False


class Silent(ControlMessage, verb="silent"):
    """The pulse of a rank stopped."""

    proc: int
    since_s: float


class Heard(ControlMessage, verb="heard"):
    """The pulse of a rank came back."""

    proc: int
    since_s: float


class Board(ControlMessage, verb="board"):
    """Changed rows of the board, and of usage, at a time of the host's clock."""

    now_ns: int
    ranks: list[Row]
    usage: list[Row]


class RawOutput(ControlMessage, verb="raw"):
    """What a rank wrote to its file descriptors, made of so many bytes."""

    proc: int
    stream: str
    text: str
    bytes: int


# from an agent to a rank


class Leave(ControlMessage, verb="exit"):
    """End in an orderly way within this time."""

    grace_s: float | None = None
