"""Between hosts: what is said over CURVE when one joins another. Everything else is relayed."""

from __future__ import annotations

from typing import Final, NamedTuple

from monarch_nb.core.wire.messages.codec import Request

PROTOCOL: Final = 2
"""Of what is said between hosts; who has another number cannot be talked to."""


class Joined(NamedTuple):
    """The host can be used. `agent` is the process that starts ranks there."""

    agent: int
    host: str
    versions: dict[str, str]


class Join(Request[Joined], verb="join"):
    """A controller wants a host: it says the number that it gives it, and the secret of their
    session."""

    protocol: int
    versions: dict[str, str]
    host: int
    controller: int
    secret: str
