"""What lets a host join a job: where its head is, and keys that are let in until all have come.

A ticket is a secret: it travels by standard input, in a private file, or as a mounted secret, never
in a command line or in the environment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from monarch_nb.errors import AuthError
from monarch_nb.net.keys import KeyPair
from monarch_nb.net.private import read_private


class Ticket(NamedTuple):
    """`job` names it, `addresses` are all at which the head may be reached, the best first, `head`
    is its public key. `public` and `secret` are the pair with which hosts of this job join, `env`
    is to be set there."""

    job: str
    addresses: list[str]
    head: str
    public: str
    secret: str
    env: dict[str, str]

    @property
    def keys(self) -> KeyPair:
        return KeyPair(self.public.encode(), self.secret.encode())

    def to_line(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Ticket:
        """Read a ticket. Raises `AuthError` for what is none, without showing any of it."""
        try:
            return Ticket(**json.loads(line))
        except (ValueError, TypeError):
            raise AuthError("this is no ticket of a monarch_nb job") from None

    @staticmethod
    def from_file(path: Path) -> Ticket:
        """Read a ticket from a file that nobody else can read. Raises `AuthError`, `OSError`."""
        return Ticket.from_line(read_private(path).encode())
