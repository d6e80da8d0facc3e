"""What the ranks of these tests run, and what they are asked."""

import socket

from monarch_nb import Actor, endpoint


class Where(Actor):
    """Says on which machine it is."""

    @endpoint
    def machine(self) -> str:
        return socket.gethostname()

    @endpoint
    def machine_of(self, other: "Where") -> str:
        return other.machine.call_one().get(10)

    @endpoint
    def length(self, data: bytes) -> int:
        return len(data)


def names(actors: Where) -> list[str]:
    """Return the machine of each rank."""
    return actors.machine.call().get(60).values()
