"""Of kept meshes: their ranks go on when the process that drives them, the controller, has gone,
and another one takes its place."""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request, row
from monarch_nb.core.wire.messages.status import KeptError

DRIVEN = "driven"
"""The kind of a refusal: another controller drives the ranks, and lives."""


class Keep(Request[Done], verb="keep"):
    """To an agent: these ranks, and what they have spawned, go on for so long when their controller
    has gone; who shows the key may take its place. Each replaces the last."""

    procs: list[int]
    for_s: float
    key: str


@row
class Doing(NamedTuple):
    """So many ranks of a host are in a state, with what, the longest of them for so long."""

    ranks: int
    state: str
    what: str
    for_s: float


class Alone(NamedTuple):
    """What the kept ranks of a host do while nobody drives them: for how long that is so, how long
    it may still be, and how old this news is."""

    doing: list[Doing]
    alone_s: float
    left_s: float
    age_s: float = 0.0


class Adopted(NamedTuple):
    """The sender is the controller now. `procs` are the ranks that there are, `pids` their
    processes, 0 where one has none yet; `logged`: so many records of raw output came before;
    `alone_s`: for how long there was no controller."""

    procs: list[int]
    pids: list[int]
    gpus: list[str]
    pid: int
    logged: int
    alone_s: float | None = None


class Adopt(Request[Adopted], verb="adopt"):
    """To an agent: be driven by the sender, a process of this host. `fence`: also if another one
    that lives does so now. `who` is the new one, for people."""

    key: str
    owner_pid: int
    who: str
    fence: bool = False


class Look(Request[Adopted], verb="look"):
    """To an agent: the sender looks at the ranks, and drives nothing, as long as it asks what they
    print (`Follow`). Answered as `Adopt`."""

    key: str


@row
class Printed(NamedTuple):
    """An output of a rank, as it was sent to its controller, or of its agent: a `RawOutput`."""

    proc: int
    output: str


class Followed(NamedTuple):
    """What has come, the oldest of each process first. `is_all`: there is no more now."""

    printed: list[Printed]
    is_all: bool


class Follow(Request[Followed], verb="follow"):
    """To an agent, from who looks at its ranks: what these, and the agent itself, have logged since
    the sender has asked last; at first, all that there is."""

    procs: list[int]


class LogPart(NamedTuple):
    """Records of a log as they are in its file, in base 64. `is_last`: there were no more when the
    first part was asked for."""

    records: str
    is_last: bool


class ReadLog(Request[LogPart], verb="read_log"):
    """To an agent: the next records of what a rank, or the agent itself, has logged of its output;
    the first ones where the sender has not asked before, or has had the last."""

    proc: int


class TakenOver(ControlMessage, verb="taken_over"):
    """From an agent to a controller that drives its ranks no more. `at`: seconds since 1970."""

    who: str
    at: float


class ControllerGone(ControlMessage, verb="controller_gone"):
    """From an agent to a rank that goes on alone. The next controller may have come before this:
    what that says comes another way."""

    controller: int


# from a controller to a rank


class LogOutput(ControlMessage, verb="log_output"):
    """Log what is printed and shown from now on, up to so many bytes."""

    limit_bytes: int


@row
class KeptCell(NamedTuple):
    """A cell that runs, waits, or has ended and was not yet taken notice of: who is answered and
    where, under which tag, what it is called, its text and where its first line stands."""

    source: int
    reply: int
    tag: int
    what: str
    code: str
    filename: str
    first_line: int
    keep: bool
    is_over: bool


@row
class CellFile(NamedTuple):
    """Under which file name the code of a cell is known to tracebacks, and what the cell is
    called."""

    filename: str
    what: str


class Inventory(NamedTuple):
    """What a rank has of the controller before. `logged`: how many records of output it had
    written when it began to send to the new one. `files` are those of the cells that began last,
    `errors` the last ones of all."""

    cells: list[KeptCell]
    logged: int
    files: list[CellFile]
    errors: list[KeptError]


class TakeControl(Request[Inventory], verb="take_control"):
    """The sender is the controller from now on, in place of `old`, and owns what that has
    spawned here."""

    old: int


class ResumeCell(ControlMessage, verb="resume_cell"):
    """Answer a cell of the controller before to the sender, where this message is answered and
    under its tag: when it ends, or now if it has. What it prints has this tag from now on."""

    source: int
    reply: int


class AskAgain(ControlMessage, verb="ask_again"):
    """Ask again what debuggers and `input()` have asked the controller before: the sender knows its
    cells now."""


class CellsTaken(ControlMessage, verb="cells_taken"):
    """All ranks have ended the cells of the sender that are answered there, and it knows how."""

    replies: list[int]
