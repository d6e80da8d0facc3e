"""The hosts that have joined, or are to: what `%mesh hosts` shows of each."""

from __future__ import annotations

from typing import NamedTuple


class ListedHost(NamedTuple):
    """One host at one moment."""

    number: int
    """No other host of this controller ever has it."""
    name: str
    """Where it was asked for, and what it calls itself."""
    address: str
    """Where it is connected to, `through` another host, or `""` while it is not."""
    key: str
    """What it has shown: the fingerprint of a key, or the ticket of its job."""
    since: float | None
    """When it joined, in seconds since the epoch; None: it has not."""
    state: str
    """`here`, `joining`, or why it is not."""
    meshes: tuple[str, ...] = ()
    """Names of meshes that have ranks there."""


class Peer(NamedTuple):
    """The other end of a link. `address` is `""` and `through` None where there is no way."""

    address: str
    through: int | None


def to_revoke(hosts: list[ListedHost], wanted: str) -> ListedHost:
    """Return the host that a person means: by its name, by a word of it, or by its number.

    Raises `ValueError` for none, or several.

    Example:
        >>> node = ListedHost(2, "tcp://node2:7777 (node2)", "", "", None, "here")
        >>> to_revoke([node], "node2").number, to_revoke([node], "2").number
        (2, 2)
    """
    found = [each for each in hosts if wanted in _names(each)]
    if len(found) != 1:
        which = "several hosts are" if found else "no host is"
        known = ", ".join(f"{each.number} ({each.name})" for each in hosts) or "none"
        raise ValueError(f"{which} called {wanted!r}. By number: {known}")
    return found[0]


def _names(host: ListedHost) -> set[str]:
    words = host.name.replace("(", " ").replace(")", " ").split()
    return {host.name, str(host.number), *words}
