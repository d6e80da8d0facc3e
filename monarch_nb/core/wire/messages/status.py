"""What ranks tell of themselves: actors and errors, stacks, variables, collectives, groups."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch_nb.core.hangs.collectives import Entry
from monarch_nb.core.hangs.stacks import Frame
from monarch_nb.core.wire.messages.codec import Request, row


class ActorDetails(NamedTuple):
    """An actor of a rank. `current`: what it works at."""

    port: int
    name: str
    cls: str
    calls: int
    failed: int
    queue: int
    current: str | None


class KeptError(NamedTuple):
    """An error of a rank, by its number there; `record` is that of an `ErrorRecord`, as JSON."""

    number: int
    age_s: float
    what: str
    tag: int
    record: dict[str, Any]


class RankDetails(NamedTuple):
    """`cell` is what the main thread works at, `waiting` how much waits for it."""

    pid: int
    actors: list[ActorDetails]
    cell: str | None
    waiting: int
    errors: list[KeptError]


class GetDetails(Request[RankDetails], verb="details"):
    """`since` is the number of the last error that the asker knows."""

    since: int = 0


class ThreadStack(NamedTuple):
    """The user's calls of one thread, outermost first; the main thread's name is empty."""

    thread: str
    calls: list[Frame]


class RankStacks(NamedTuple):
    """Stacks of threads that run code of the user's, the main thread first; none: it is idle."""

    threads: list[ThreadStack]


class GetStacks(Request[RankStacks], verb="stacks"):
    """Where all threads of a rank are."""


class Variable(NamedTuple):
    """One of a rank's cells. None where it does not apply: `shape`, `dtype`, `device`, `nbytes` of
    tensors and arrays, `length` of containers, `parameters` (how many) of models, `value` of
    numbers and the like."""

    name: str
    type: str
    shape: list[int] | None = None
    dtype: str | None = None
    device: str | None = None
    nbytes: int | None = None
    length: int | None = None
    parameters: int | None = None
    value: str | None = None


class RankVariables(NamedTuple):
    """By name; `left_out`: how many more there are."""

    variables: list[Variable]
    left_out: int


class ListVariables(Request[RankVariables], verb="variables"):
    """What the variables of a rank's cells are. Runs no code of the user's. `contents`: names of
    tensors, arrays and models whose `value` is to be a summary of what is in them."""

    contents: list[str] | None = None


class LocalTensor(NamedTuple):
    """A tensor or an array as a rank has it; `whole` is the shape of all, where it is a part."""

    shape: list[int]
    dtype: str
    device: str
    whole: list[int] | None


class Window(NamedTuple):
    """Numbers of a tensor as text: rows from `row` on, of each the columns from `column` on, at
    `indices` of the dims before the last two."""

    tensor: LocalTensor
    indices: list[int]
    row: int
    column: int
    numbers: list[list[str]]


class GetWindow(Request[Window], verb="window"):
    """Some of the numbers of the variable of this name. Where `indices`, `row` or `column` are
    beyond what there is, the last that there are; where `indices` are too few, the first."""

    name: str
    indices: list[int]
    row: int = 0
    column: int = 0


class Picture(NamedTuple):
    """The last two dims of a tensor, or the only one, as `rows` times `columns` dots, each the mean
    of `each` (rows, columns) numbers. `dots` are bytes in base64: 0 to 254 from `least` to
    `greatest` of the means that are finite (null: none is), 255 what has a NaN."""

    tensor: LocalTensor
    indices: list[int]
    rows: int
    columns: int
    each: list[int]
    least: float | None
    greatest: float | None
    dots: str


class GetPicture(Request[Picture], verb="picture"):
    """The variable of this name as a picture; `indices` as in `GetWindow`."""

    name: str
    indices: list[int]


class Recorded(NamedTuple):
    """The last collectives of a rank, global ranks by group, and `why` nothing is known of them."""

    entries: list[Entry]
    members: dict[str, list[int]]
    why: str


class GetCollectives(Request[Recorded], verb="collectives"):
    """What the flight recorder has noted."""


class HeldSpans(NamedTuple):
    """When a debugger held a thread of a rank: from and to, in seconds ago."""

    spans: list[tuple[float, float]]


class GetHeldSpans(Request[HeldSpans], verb="held"):
    """To a rank: when a debugger held one of its threads, of the last seconds."""


class HeldFor(NamedTuple):
    """For how long a debugger held any rank of a mesh."""

    held_s: float


class GetHeldOfMesh(Request[HeldFor], verb="held_of_mesh"):
    """To the controller: of the last seconds, in the meshes of the sender."""

    within_s: float


class DefaultGroup(NamedTuple):
    """How a default group was made."""

    backend: str
    timeout_s: float | None


class LeftGroups(NamedTuple):
    """The default group that a rank has left, and how many others; `failed`: what it raised."""

    had: DefaultGroup | None = None
    others: int = 0
    failed: str | None = None


class LeaveGroups(Request[LeftGroups], verb="leave_groups"):
    """Forget all process groups."""


class Met(NamedTuple):
    """The default group is made; `failed`: what it raised."""

    failed: str | None = None


class MeetAgain(Request[Met], verb="meet_again"):
    """Groups meet there from now on; with `had`, make such a default group at once."""

    store: str
    had: DefaultGroup | None


row(Entry)
row(Variable)
row(Frame)
