"""The network interfaces of this host: at which addresses others may reach what listens here, and
to which of them an address belongs."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import Final

import psutil

LOOPBACK: Final = "lo"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


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


def interface_for_others(used: str, candidates: Sequence[str]) -> str | None:
    """Return the interface by which other hosts reach this one, which has reached its job from the
    address `used`.

    Through a tunnel that is the loopback; where the job has addresses on a network, it is the first
    interface of this host that is on one.
    """
    found = interface_of(used)
    if found != LOOPBACK or all(interface_of(each) == LOOPBACK for each in candidates):
        return found
    return interface_of(*(f"tcp://{each}:0" for each in _on_networks(is_ipv6=False)))


def reachable_at(address: str) -> list[str]:
    """Return the addresses of each interface at which `address`, as `tcp://host:port`, listens.

    The loopback comes last: it is of use to processes of this host only. An address of one
    interface, or of a unix socket, is returned as it is.

    Example:
        >>> reachable_at("tcp://127.0.0.1:26600")
        ['tcp://127.0.0.1:26600']
    """
    kind, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if kind != "tcp" or not ipaddress.ip_address(host.strip("[]")).is_unspecified:
        return [address]
    is_ipv6 = host.startswith("[")
    found = [*_on_networks(is_ipv6=is_ipv6), *_loopbacks(is_ipv6=is_ipv6)]
    return [
        f"tcp://[{each}]:{port}" if each.version == 6 else f"tcp://{each}:{port}" for each in found
    ]


def _on_networks(*, is_ipv6: bool) -> list[Address]:
    return [each for each in _addresses(is_ipv6=is_ipv6) if not each.is_loopback]


def _loopbacks(*, is_ipv6: bool) -> list[Address]:
    return [each for each in _addresses(is_ipv6=is_ipv6) if each.is_loopback]


def _addresses(*, is_ipv6: bool) -> Iterator[Address]:
    families = {socket.AF_INET, socket.AF_INET6} if is_ipv6 else {socket.AF_INET}
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family in families:
                found = ipaddress.ip_address(each.address.partition("%")[0])
                if not found.is_link_local:  # of no use without the name of an interface
                    yield found


def _resolved(address: str) -> Iterator[str]:
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    with contextlib.suppress(OSError):
        for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            yield str(place[0])
