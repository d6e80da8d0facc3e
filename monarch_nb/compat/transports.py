"""Ways in which Monarch's processes reach each other: their words, and `BindSpec`."""

from __future__ import annotations

from typing import Any, Final, final

from monarch_nb import ChannelTransport

_WORDS: Final = {
    "ipc": ChannelTransport.Unix,
    "local": ChannelTransport.Local,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
    "tcp": ChannelTransport.TcpWithHostname,
    "tls": ChannelTransport.Tls,
    "unix": ChannelTransport.Unix,
}
_LINKS: Final = ("tcp://", "ipc://")


@final
class BindSpec:
    """Where a process listens: a `ChannelTransport`, a word for one, or an address.

    Equal to what it was made of, and to others of the same.

    Raises:
        TypeError: for what is none of these.
        ValueError: for a text that is no address and no transport.

    Example:
        >>> BindSpec("tcp") == BindSpec(ChannelTransport.TcpWithHostname)
        True
    """

    def __init__(self, spec: Any) -> None:
        self.transport = checked(spec)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BindSpec):
            return self.transport == other.transport
        return isinstance(other, str) and self.transport == other

    def __hash__(self) -> int:
        return hash(self.transport)

    def __str__(self) -> str:
        return str(self.transport)

    def __repr__(self) -> str:
        return f"BindSpec({self.transport!r})"


def checked(value: Any) -> ChannelTransport | str:
    """Return the transport, or the address, that is meant. Raises as `BindSpec`."""
    if isinstance(value, BindSpec):
        return value.transport
    if not isinstance(value, str):
        raise TypeError(f"a transport is a ChannelTransport or an address, not {value!r}")
    if isinstance(value, ChannelTransport) or value.startswith(_LINKS):
        return value
    if value not in _WORDS:
        raise ValueError(f"no such transport: {value!r}; know {sorted(_WORDS)}, and addresses")
    return _WORDS[value]
