"""Network interfaces of this host, by the addresses that they have."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import psutil

LOOPBACK: Final = "lo"


def interface_of(*addresses: str) -> str | None:
    """Return the interface that the first of these has: `tcp://host:port`, or one of no network,
    which is the loopback. None where this host has none of them."""
    owners: dict[str, str] = {
        each.address.partition("%")[0]: name
        for name, all_of_it in psutil.net_if_addrs().items()
        for each in all_of_it
    }
    for address in addresses:
        if not address.startswith("tcp://"):
            return LOOPBACK
        for found in _resolved(address):
            if found.startswith("127."):
                return LOOPBACK
            if found in owners:
                return owners[found]
    return None


def _resolved(address: str) -> Iterator[str]:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with contextlib.suppress(OSError):
        for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(place[0])
