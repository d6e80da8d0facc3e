"""The network interfaces of this host: at which addresses others may reach what listens here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

import psutil


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
    found = sorted(_addresses(is_ipv6=is_ipv6), key=lambda each: each.is_loopback)
    return [
        f"tcp://[{each}]:{port}" if each.version == 6 else f"tcp://{each}:{port}" for each in found
    ]


def _addresses(*, is_ipv6: bool) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    families = {socket.AF_INET, socket.AF_INET6} if is_ipv6 else {socket.AF_INET}
    for interface in psutil.net_if_addrs().values():
        for each in interface:
            if each.family in families:
                found = ipaddress.ip_address(each.address.partition("%")[0])
                if not found.is_link_local:  # of no use without the name of an interface
                    yield found
