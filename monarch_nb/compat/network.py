"""Addresses of hosts: the names of Monarch's `monarch.tools.network`."""

from __future__ import annotations

import enum
import ipaddress
import socket


class AddrType(enum.Enum):
    """Which kind of address is wanted. `Default`: IPv6 where there is one, else IPv4."""

    Default = enum.auto()
    IPv4 = enum.auto()
    IPv6 = enum.auto()


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """Return an address of this host name that others can use.

    Raises `RuntimeError` where there is none; link-local addresses do not count.
    """
    for family in _FAMILIES[addr_type]:
        for found in _addresses(hostname, port, family):
            if not ipaddress.ip_address(found.partition("%")[0]).is_link_local:
                return found
    raise RuntimeError(f"{hostname!r} has no address that a TCP socket can use")


def get_sockaddr(hostname: str, port: int) -> str:
    """Return `address:port`, `[address]:port` for IPv6. Raises `RuntimeError` as `get_ipaddr`."""
    found = get_ipaddr(hostname, port)
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def _addresses(hostname: str, port: int, family: socket.AddressFamily) -> list[str]:
    try:
        found = socket.getaddrinfo(hostname, port, family, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [str(each[4][0]) for each in found]
