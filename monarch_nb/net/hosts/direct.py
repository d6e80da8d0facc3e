"""Links from host to host, made at the first message between two, with what both are told.

Where one cannot be made, or breaks for good while both hosts live, the way through the controller's
host takes its place: each end says how many records it has got on the link, and the other sends
again, that way, what is beyond. So nothing is lost, doubled or out of order. Until both have said
so there is no other link between the two, and who has waited in vain when another controller comes
says it again: what was said may have been lost with the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from monarch_nb.core.wire.frames import is_gateway
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.hosts import Detour, Expect, HostGone, Meet, Way
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Link, Timing
from monarch_nb.net.hosts.routes import Routes

_DETOUR_S: Final = 1.0  # beyond what is silent twice; nothing is lost by it
_REMEMBERED: Final = 1000  # links that were given up
_UNKNOWN: Final = "its other end does not know it"
NewLink = Callable[[int, Secret, Timing, Sequence[str]], Link]


class DirectLinks:
    """Those of one host. `tell(host, message)` goes through the controller's host; `way_lost(host,
    way)` is called when the other end has given a link up: what it carried goes another way."""

    def __init__(
        self,
        routes: Routes,
        timing: Timing,
        new_link: NewLink,
        tell: Callable[[int, object], None],
        way_lost: Callable[[int, Way], None],
    ) -> None:
        self._routes = routes
        limit_s = min(timing.outage_s, 2 * timing.silent_s + _DETOUR_S)
        self._timing = timing._replace(outage_s=limit_s)
        self._new_link = new_link
        self._tell = tell
        self._way_lost = way_lost
        self._links: dict[int, Link] = {}
        self._ended: dict[int, Link] = {}  # whose other end has not said yet what it has got
        self._received: dict[str, int] = {}  # how many records came on those, by their sessions

    @property
    def hosts(self) -> Collection[int]:
        """The hosts to which there is one."""
        return self._links.keys()

    def is_ending(self, host: int) -> bool:
        """Tell whether the link to a host was given up here, and its other end has not said so."""
        return host in self._ended

    def has(self, link: Link) -> bool:
        return self._links.get(link.host) is link

    def told(self, host: int, body: codec.Body) -> None:
        """Do what the gateway of a host says. Raises `RemoteProtocolError` for nonsense."""
        match body.get("verb"):
            case "meet":
                meet = codec.decode(Meet, body)
                self._link(meet.host, meet.secret, meet.addresses)
            case "expect":
                expect = codec.decode(Expect, body)
                self._link(expect.host, expect.secret, ())
            case "detour":
                self._detour(host, codec.decode(Detour, body))
            case "host_gone":
                self._gone(codec.decode(HostGone, body).host)
            case verb:
                raise RemoteProtocolError(f"a gateway knows no {verb!r:.80}")

    def lost(self, link: Link) -> None:
        """Have a link replaced that was given up here."""
        self._ended[link.host] = self._take(link.host)
        self._routes.hold(link.host)
        self._tell(link.host, Detour(link.received, _session(link)))

    def tell_again(self) -> None:
        """Tell of links that were given up whose other end has not answered: there is another
        controller."""
        for host, link in self._ended.items():
            self._tell(host, Detour(link.received, _session(link)))

    def clear(self) -> None:
        """Forget all: the controller is lost."""
        self._links.clear()
        self._ended.clear()

    def _link(self, host: int, secret: str, addresses: Sequence[str]) -> None:
        if host in self._links:  # from before the controller has changed; the other end lost it
            self._links[host].lose(_UNKNOWN)
        if host in self._ended:  # nothing goes another way before that is settled
            return
        link = self._links[host] = self._new_link(
            host, Secret.from_text(secret), self._timing, addresses
        )
        self._routes.add(link)

    def _detour(self, host: int, told: Detour) -> None:
        link, ended = self._links.get(host), self._ended.get(host)
        if link is not None and _session(link) == told.session:  # given up there
            self._take(host).end()
            self._tell(host, Detour(link.received, told.session, answers=True))
            self._way_lost(host, Way.LOST)  # it may have become one after the other end said so
            self._go_round(link, told.received)
        elif ended is not None and _session(ended) == told.session:
            del self._ended[host]
            self._go_round(ended, told.received)
        elif not told.answers:  # it was settled here before, or never known
            received = self._received.get(told.session, 0)
            self._tell(host, Detour(received, told.session, answers=True))

    def _go_round(self, link: Link, received: int) -> None:
        if (controller := self._routes.controller) is None:
            return
        for flow, piece in link.drain(received):
            if not all(map(is_gateway, flow)):  # else it was carried for others, who go another way
                controller.send(flow, [piece])
        self._routes.detour(link.host)

    def _gone(self, host: int) -> None:
        if host in self._links:
            self._take(host).end()
        self._ended.pop(host, None)
        self._routes.forget(host)

    def _take(self, host: int) -> Link:
        self._routes.remove(host)
        link = self._links.pop(host)
        self._received[_session(link)] = link.received
        if len(self._received) > _REMEMBERED:
            del self._received[next(iter(self._received))]
        return link


def _session(link: Link) -> str:
    return link.secret.session.hex()
