"""To a rank or an agent that a test may harm. Who was not started for that knows none of these."""

from __future__ import annotations

from typing import NamedTuple

from monarch_nb.core.wire.messages.codec import Done, Request


class InjectFault(Request[Done], verb="inject_fault"):
    """Have something happen at a point that the receiver passes: `after` so many times without it,
    then so many `times`, None: always. `number` is the sender's. An exception is in the buffers."""

    number: int
    at: str
    action: str
    seconds: float
    after: int
    times: int | None


class Fired(NamedTuple):
    """How often it has happened."""

    times: int


class CountFault(Request[Fired], verb="count_fault"):
    """Answered with how often this has happened; with `remove` it happens no more."""

    number: int
    remove: bool = False
