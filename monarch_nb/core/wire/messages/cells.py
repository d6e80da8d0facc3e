"""Cells, scripts, variables, completions and widgets: to the ranks, and their answers."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.wire.messages.codec import ControlMessage, Done, Request, row


class Script(NamedTuple):
    """A run of a script, or of a `module` of this name; `port` is its `MASTER_PORT`.

    The `ranks` of the mesh that run it count from 0 there; `hosts` are theirs, `run` its name.
    """

    name: str
    args: list[str]
    module: bool
    ranks: list[int]
    hosts: list[int]
    run: str
    port: int


class CellOutcome(NamedTuple):
    """How a cell ended on a rank.

    `status`: "ok", "error", "interrupted", "cancelled" (it had not started) or "lost" (the rank
        died); "stopping" is no end: the rank has heard that it is to stop.
    `text`, `data`: its last expression, if it had one, as plain text and as it is shown: a dict
        with `data` (mime bundle) and `metadata`.
    `number`: of its error among those of the rank.
    `raw`: something that it wrote to the descriptors may not have gone on yet.
    """

    status: str
    error: ErrorRecord | None = None
    data: dict[str, Any] | None = None
    text: str | None = None
    elapsed_s: float = 0.0
    number: int | None = None
    raw: bool = False


PAST: Final = "past"
LOOP: Final = "loop"


class RunCell(Request[CellOutcome], verb="cell"):
    """Run a cell, or a script in its place. `what` is what views call it.

    With `keep` its last value is kept under the sender and the port of the answer. `again`: a
    new process runs it alone, as others have before, for what it defines (`PAST`) or up to the loop
    that they are in (`LOOP`); nothing is shown, nobody is met.
    """

    code: str = ""
    filename: str = ""
    first_line: int = 1
    script: Script | None = None
    what: str = "cell"
    keep: bool = False
    again: str = ""


class InterruptCell(ControlMessage, verb="interrupt_cells"):
    """Interrupt the cell that answers there, or drop it from the queue."""

    reply: int


class NotDefined(NamedTuple):
    """Why there is no value: the name is not defined, and what there is."""

    missing: str
    there: list[str]


class GetVariable(ControlMessage, verb="get_names"):
    """Answered by a `REPLY` frame, or in words. `names` has one."""

    names: list[str]


class SetVariables(Request[Done], verb="set_names"):
    """All of them or none. The values are in the buffers."""

    names: list[str]


class GetResult(ControlMessage, verb="get_result"):
    """As `GetVariable`, what is kept of the cell that answered there."""

    reply: int


class DropResult(ControlMessage, verb="drop_result"):
    """Keep it no longer."""

    reply: int


@row
class Match(NamedTuple):
    """What could stand from `start` to `end`, offsets in code points, and its kind."""

    text: str
    start: int
    end: int
    kind: str


class Completions(NamedTuple):
    """What could stand at the cursor, and all names there are with their kinds."""

    matches: list[Match]
    names: dict[str, str]


class Complete(Request[Completions], verb="complete"):
    """`cursor` is an offset in code points."""

    code: str
    cursor: int


class Help(NamedTuple):
    """On a name; None: it is not there."""

    text: str | None


class Inspect(Request[Help], verb="inspect"):
    """Help on the name at the cursor, with its source if `detail` is 1."""

    code: str
    cursor: int
    detail: int


class SourceText(NamedTuple):
    """None: the controller knows no cell of that name."""

    text: str | None


class GetSource(Request[SourceText], verb="source"):
    """To the controller: the text of a cell."""

    filename: str


class Output(NamedTuple):
    """Of a rank, in an `OUTPUT` frame: `text` of "stdout" or "stderr", or `content` of "display" (a
    message of Jupyter's), "progress" or "metrics". `blocks` are where in the text something of
    several lines was written at once: the first character and the one behind the last."""

    mesh: int
    rank: int
    stream: str
    text: str = ""
    content: dict[str, Any] | None = None
    blocks: list[tuple[int, int]] | None = None


class OutputTaken(ControlMessage, verb="output_taken"):
    """The controller has handled so much of what a rank has printed."""

    chars: int


class LoggedValues(NamedTuple):
    """Content of an `Output` of "metrics": points by name, how many were left out, the first; the
    run that they are of (`core.runs.RunKey`)."""

    points: dict[str, list[object]]
    left_out: tuple[int, str] | None = None
    run: tuple[int, str, int] = (0, "", 0)


class MetricsTaken(ControlMessage, verb="metrics_taken"):
    """The controller has handled a message of metrics."""


class WidgetMessage(ControlMessage, verb="comm"):
    """The browser's message to a widget; `parent` is its id. Buffers travel as they are."""

    type: str
    comm_id: str
    data: dict[str, Any]
    metadata: dict[str, Any]
    parent: str
