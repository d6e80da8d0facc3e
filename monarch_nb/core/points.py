"""Named points of the code, at which a test may have something happen (`monarch_nb.testing`).

Rule: where nothing is armed, to pass a point is one look at an empty dict. What happens there is
decided by who arms it; nothing here knows. The tables have all points that this package passes;
programs pass points of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

OF_RANKS: Final = {
    "rank.started": "a rank has its process, and has not said that it is ready",
    "call.begin": "an endpoint is about to run; its arguments are there",
    "call.end": "an endpoint has returned; its result is made, and not sent",
    "cell.begin": "a cell is about to run",
    "cell.end": "a cell is over; its outcome is not sent",
    "collective.wait": "a rank is about to wait for a collective of `torch.distributed`",
    "transfer.begin": "reads and writes of `RDMABuffer`s, or of `recv_tensor`, are about to begin",
    "interrupt": "a call or a cell is about to be interrupted",
}
OF_AGENTS: Final = {
    "agent.spawn": "the agent of a host is about to start ranks",
    "agent.stop": "it is about to stop ranks",
    "agent.status": "it is about to tell somebody who watches its ranks what has changed",
}
OF_LINKS: Final = {
    "link.connect": "a connection to the host is about to be made, or was accepted from it",
    "link.send": "a record is about to be written",
    "link.receive": "bytes have come, and are not read",
}


class OnLink(NamedTuple):
    """What passes a point of a link: the number of the host at its other end, and the bytes."""

    host: int
    data: memoryview | None


armed: Final[dict[str, Callable[[Any], bool]]] = {}
"""What happens at points, by their names. Called with what passes; tells whether a connection is to
break there."""


def point(name: str, passing: object = None) -> None:
    """Pass a named point: nothing happens, unless a test has armed it."""
    if armed and (hit := armed.get(name)) is not None:
        hit(passing)


def breaks(name: str, host: int, data: memoryview | None = None) -> bool:
    """Pass a point of a link to a host; tell whether its connection is to break there."""
    hit = armed.get(name) if armed else None
    return hit is not None and hit(OnLink(host, data))
