"""How a record of the session between two hosts is carried by a third, which has links to both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Message
from monarch_nb.net import wire
from monarch_nb.net.hosts import pieces
from monarch_nb.net.hosts.link import Link, Tunnel
from monarch_nb.net.hosts.pieces import Bytes

LinkTo = Callable[[int], Link | None]


def tunnel(own: int, through: int, to: int, link_to: LinkTo) -> Tunnel:
    """Return the way of host `own` to a host through another one."""
    ends = wire.gateway_id(own), wire.gateway_id(to)

    def carry(record: Sequence[Bytes]) -> None:
        if (link := link_to(through)) is not None:
            send(own, link, _header(*ends, ends[0]), record)

    return Tunnel(through, carry)


def carry_on(own: int, link: Link, message: Message) -> None:
    """Send a record that is not for this host one link further."""
    header = _header(message.source, message.port, wire.gateway_id(own))
    send(own, link, header, [bytes(message.payload)])


def came_through(message: Message) -> int:
    """Return the host that has carried it last."""
    return message.reply >> HOST_SHIFT


def send(
    own: int, link: Link, head: bytes, parts: Sequence[Bytes], caller: int | None = None
) -> None:
    """Send a message to the gateway at the other end of a link, in the order of all these, and of
    what `caller` sends over it."""
    ends = wire.gateway_id(own), wire.gateway_id(link.host)
    flow = ends[0] if caller is None else caller, ends[1]
    link.send(flow, [pieces.in_parts(*ends, head, parts)])


def _header(source: int, to: int, through: int) -> bytes:
    return HEADER.pack(frames.TUNNEL, 0, 0, 0, 0, to, source, through)
