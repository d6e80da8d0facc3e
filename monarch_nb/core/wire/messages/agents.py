"""To the agent of a host, and from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch_nb.core.wire.messages.codec import Done, verb

Row = list[Any]
"""Of a board: `[process, state, since_ns, what, busy_ns, queue, calls, failed, beat]`, or of usage.
Kept as it came: there are a thousand of them ten times a second, and few are looked at."""


@verb("spawn")
class Spawn(NamedTuple):
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
    devices: list[str | None] | None = None
    config: dict[str, Any] | None = None
    bind: list[Any] | None = None

    def answer(self) -> type[Done]:
        return Done


@verb("stop")
class Stop(NamedTuple):
    """Answered when all are gone."""

    procs: list[int]
    grace_s: float | None = None

    def answer(self) -> type[Done]:
        return Done


@verb("kill")
class Kill(NamedTuple):
    """Send a signal to ranks."""

    procs: list[int]
    signal: int = 9

    def answer(self) -> type[Done]:
        return Done


@verb("watch")
class Watch(NamedTuple):
    """The sender wants to know of the ends and pulses of these."""

    procs: list[int]

    def answer(self) -> type[Done]:
        return Done


class Watched(NamedTuple):
    """The name of the host whose board is watched."""

    host: str


@verb("status")
class WatchBoard(NamedTuple):
    """Begin, or end, to be sent the board."""

    on: bool
    period_s: float | None = None

    def answer(self) -> type[Watched]:
        return Watched


@verb("taken")
class Taken(NamedTuple):
    """So many bytes of raw output were handled."""

    bytes: int


@verb("drain")
class Drain(NamedTuple):
    """Answered when all has gone on that these ranks have written to their descriptors."""

    procs: list[int]

    def answer(self) -> type[Done]:
        return Done


class LastLines(NamedTuple):
    """The last lines of a rank's raw standard streams."""

    text: str


@verb("tail")
class GetLastLines(NamedTuple):
    """Of a living rank."""

    proc: int

    def answer(self) -> type[LastLines]:
        return LastLines


@verb("dump")
class DumpStacks(NamedTuple):
    """Have ranks write where their threads are."""

    procs: list[int]

    def answer(self) -> type[Done]:
        return Done


class StackDumps(NamedTuple):
    """What ranks have written, by process."""

    texts: dict[str, str]


@verb("dumped")
class GetStackDumps(NamedTuple):
    """What these have written since the last `DumpStacks`."""

    procs: list[int]

    def answer(self) -> type[StackDumps]:
        return StackDumps


class NativeStacks(NamedTuple):
    """Of each process a text of py-spy, or why there is none."""

    dumps: dict[str, tuple[str, str]]


@verb("native")
class GetNativeStacks(NamedTuple):
    """Answered when py-spy has told of all."""

    procs: list[int]

    def answer(self) -> type[NativeStacks]:
        return NativeStacks


class BoardRows(NamedTuple):
    """Rows as in `Board`, read at `now_ns`."""

    now_ns: int
    rows: list[Row]


@verb("rows")
class GetBoardRows(NamedTuple):
    """Of these ranks."""

    procs: list[int]

    def answer(self) -> type[BoardRows]:
        return BoardRows


class Here(NamedTuple):
    """The agent is there. `malformed` counts messages that were none."""

    pid: int
    host: str
    malformed: int


@verb("hello")
class Hello(NamedTuple):
    """Whether the agent is there."""

    def answer(self) -> type[Here]:
        return Here


@verb("stop_all")
class StopAll(NamedTuple):
    """As `Stop`, for every rank of the host."""

    grace_s: float | None = None

    def answer(self) -> type[Done]:
        return Done


@verb("shutdown")
class Shutdown(NamedTuple):
    """Stop every rank, then end the agent."""

    grace_s: float | None = None

    def answer(self) -> type[Done]:
        return Done


# from an agent


@verb("ready")
class Ready(NamedTuple):
    """The zygote is up: its process, how long it took to load and how many threads it has."""

    pid: int
    host: str
    versions: dict[str, Any]
    preload_s: float
    threads: int
    zygote: int


@verb("failed")
class ZygoteFailed(NamedTuple):
    """The zygote could not start, or died; every rank ends."""

    stage: str
    text: str


@verb("spawned")
class Spawned(NamedTuple):
    """Ranks have processes."""

    procs: list[int]
    pids: list[int]


@verb("exited")
class Exited(NamedTuple):
    """How a rank ended, as its agent saw it. `unreachable_s`: it was silent for so long."""

    proc: int
    pid: int | None
    code: int | None
    signal: int | None
    reason: str | None
    tail: str
    oom: bool
    unreachable_s: float | None
    asked: bool


@verb("silent")
class Silent(NamedTuple):
    """The pulse of a rank stopped."""

    proc: int
    since_s: float


@verb("heard")
class Heard(NamedTuple):
    """The pulse of a rank came back."""

    proc: int
    since_s: float


@verb("board")
class Board(NamedTuple):
    """Changed rows of the board, and of usage, at a time of the host's clock."""

    now_ns: int
    ranks: list[Row]
    usage: list[Row]


@verb("raw")
class RawOutput(NamedTuple):
    """What a rank wrote to its file descriptors, made of so many bytes."""

    proc: int
    stream: str
    text: str
    bytes: int


# from an agent to a rank


@verb("exit")
class Leave(NamedTuple):
    """End in an orderly way within this time."""

    grace_s: float | None = None
