"""What the ranks of these tests run, and what they are asked."""

import os
import socket

from monarch_nb import Actor, endpoint


class Where(Actor):
    """Says on which machine it is, and what it finds there."""

    def __init__(self) -> None:
        self._calls = 0

    @endpoint
    def machine(self) -> str:
        return socket.gethostname()

    @endpoint
    def machine_of(self, other: "Where") -> str:
        return other.machine.call_one().get(10)

    @endpoint
    def count(self) -> int:
        self._calls += 1
        return self._calls

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def length(self, data: bytes) -> int:
        return len(data)


def names(actors: Where) -> list[str]:
    """Return the machine of each rank."""
    return actors.machine.call().get(60).values()
