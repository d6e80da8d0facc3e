"""The controller's part of the tree: it has links to few hosts, which carry what is for the others.

A host joins over a connection of its own, and has one again where nobody carries for it. Then it is
told under which host it belongs, asks for a tunnel through that, and its connection is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from monarch_nb.core.cast_tree import Branch, TreeCast, TreeFold
from monarch_nb.core.casting import Cast, Run, by_host
from monarch_nb.core.reply_folding import framed
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Buffer, Message
from monarch_nb.core.wire.messages.hosts import GoUnder, Way
from monarch_nb.net import wire
from monarch_nb.net.hosts import pieces
from monarch_nb.net.hosts.link import Link
from monarch_nb.net.hosts.routes import Routes
from monarch_nb.net.hosts.session import Body
from monarch_nb.net.hosts.tree import tunnels
from monarch_nb.net.hosts.tree.plan import Plan

PIECE_BYTES: Final = pieces.PIECE_BYTES // 2  # beside it, a message has the hosts that it is for
_ASK_AGAIN_S: Final = 1.0
_TRIES: Final = 3  # then it is to go under another host
_DOUBT_S: Final = 0.5  # without a connection to who carries, those under it are reached otherwise
_MOST_PLANS: Final = 64


class _Asked(NamedTuple):
    at: float
    tries: int


class TreeRoot:
    """The hosts under this one. `tell(host, message)` tells a gateway, `deliver(process, message)`
    takes what has come for a process of this host.

    Casts may come from any thread; all else happens in that of the loop.
    """

    def __init__(
        self,
        host: int,
        fan_out: int,
        routes: Routes,
        tell: Callable[[int, object], None],
        deliver: Callable[[int, Sequence[Buffer]], None],
    ) -> None:
        self._host = host
        self._routes = routes
        self._tell = tell
        self._deliver = deliver
        self._plan = Plan(fan_out)
        self._under: dict[int, int] = {}  # whom another host carries for: which
        self._to_place: dict[int, _Asked] = {}  # those that belong under a host, and are not
        self._doubted: dict[int, float] = {}  # since when who carries is not connected
        self._casting = threading.RLock()
        self._cast_plans: dict[int, _CastPlan] = {}  # by the identity of the runs that are kept
        self._changes = 0  # of the tree

    def add(self, host: int) -> None:
        """Have a new host."""
        self._plan.add(host)
        self._note_place(host)

    def remove(self, host: int) -> None:
        """Have a host no more. Those under it are reached otherwise."""
        for each in self._plan.remove(host):
            self._note_place(each)
        self._to_place.pop(host, None)
        self._doubted.pop(host, None)
        self._go_round(host, Way.LOST)
        if self._under.pop(host, None) is not None:
            self._changes += 1

    def way_changed(self, link: Link) -> None:
        """Note that a link goes another way now."""
        through = link.through
        if self._under.get(link.host) != through:
            if through is None:
                del self._under[link.host]
            else:
                self._under[link.host] = through
            self._changes += 1
        self._note_place(link.host)

    def way_lost(self, through: int, host: int, way: Way) -> None:
        """Reach a host otherwise than through this one."""
        link = self._routes.link(host)
        if link is not None and self._under.get(host, through) == through:
            link.lose_tunnel(way)

    def tick(self, now: float) -> None:
        """Do what is due."""
        for host, asked in list(self._to_place.items()):
            if now - asked.at > _ASK_AGAIN_S:
                self._place(host, asked, now)
        for host in set(self._under.values()):
            link = self._routes.link(host)
            if link is None or link.through is not None or link.is_connected:
                self._doubted.pop(host, None)
            elif now - self._doubted.setdefault(host, now) > _DOUBT_S:
                self._go_round(host, Way.SILENT)

    def _note_place(self, host: int) -> None:
        parent = self._plan.parent_of(host)
        if parent is None or parent == self._under.get(host):
            self._to_place.pop(host, None)
        else:
            self._to_place.setdefault(host, _Asked(0.0, 0))

    def _place(self, host: int, asked: _Asked, now: float) -> None:
        link, parent = self._routes.link(host), self._plan.parent_of(host)
        if link is None or parent is None or not link.is_connected:
            return
        if not self._can_carry(parent):
            self._plan.move(host)
            self._note_place(host)
            return
        self._tell(host, GoUnder(parent))
        tries = asked.tries + 1
        if tries > _TRIES:
            self._plan.move(host)
            tries = 0
        if host in self._to_place:
            self._to_place[host] = _Asked(now, tries)

    def _can_carry(self, host: int) -> bool:
        link = self._routes.link(host)
        return link is not None and (link.is_connected or link.through is not None)

    def _go_round(self, host: int, way: Way) -> None:
        # what is under a host is reached without it
        for each in [each for each, through in self._under.items() if through == host]:
            self.way_lost(host, each, way)

    def furthest_first(self, links: Iterable[Link]) -> list[Link]:
        """Return links such that none carries for one behind it."""
        return sorted(links, key=lambda link: -len(list(self._above(link.host))))

    # what comes up

    def on_record(self, message: Message) -> None:
        """Take a record of the session with a host, which another has carried."""
        host, through = message.source >> HOST_SHIFT, tunnels.came_through(message)
        link = self._routes.link(host)
        if link is None or host in (through, *self._above(through)):
            return
        tunnel = tunnels.tunnel(self._host, through, host, self._routes.link)
        link.take_carried(tunnel, memoryview(message.payload))

    def _above(self, host: int) -> Iterator[int]:
        while (above := self._under.get(host)) is not None:
            yield above
            host = above

    def on_fold(self, message: Message) -> None:
        """Take folded answers of several hosts."""
        fold = TreeFold.unpack(message)
        stale = []
        for host, number, has_come in fold.numbered:
            link = self._routes.link(host)
            if link is None or not link.take_shared(number, 0, has_come):
                stale.append(host)
        rest = fold.without(stale) if stale else fold.fold
        if rest is not None:
            self._deliver(fold.caller, [framed(rest)])

    # casts: any thread

    def cast(self, source: int, cast: Cast) -> Mapping[int, list[Run]]:
        """Send a message to the hosts of it that are under others, and to those above them; return
        what is left, for hosts that are reached alone."""
        if not self._under:
            return by_host(cast.runs)
        reply = frames.parse_header(bytes(memoryview(cast.bodies[0])[: HEADER.size]))[-1]
        with self._casting:
            plan = self._plan_of(cast.runs)
            if plan.trunks:
                for piece in pieces.cut_to_share(source, 0, cast.bodies, PIECE_BYTES):
                    for trunk in plan.trunks:
                        self._send(trunk, TreeCast(source, reply, trunk.branch, [0], piece))
        return plan.alone

    def _plan_of(self, runs: Sequence[Run]) -> _CastPlan:
        # the same for each cast to these, as long as no way changes
        found, changes = self._cast_plans.get(id(runs)), self._changes
        if found is None or found.runs is not runs or found.changes != changes:
            if len(self._cast_plans) >= _MOST_PLANS:
                self._cast_plans.clear()
            links = {each.host: each for each in self._routes.links}
            found = self._cast_plans[id(runs)] = _planned(changes, runs, dict(self._under), links)
        return found

    def _send(self, trunk: _Trunk, cast: TreeCast) -> None:
        shared = _Shared(self._host, cast)
        numbers = cast.numbers
        held: list[Link] = []
        apart: list[Link] = []
        try:
            for link, above, above_at in trunk.under:
                number = 0
                if not above_at or numbers[above_at]:
                    held.append(link)
                    number = link.share(above, 0, shared)
                if not number:
                    apart.append(link)
                numbers.append(number)
        finally:  # a person may stop this anywhere: what is numbered is sent
            numbers.extend([0] * (len(trunk.branch.nodes) - len(numbers)))
            self._say(trunk.host, cast, trunk.packed)
            for link in held:
                link.shared()
        for link in apart:
            alone = cast.alone(link.host)
            self._say(link.host, alone, alone.branch.pack())

    def _say(self, host: int, cast: TreeCast, packed: bytes) -> None:
        if (link := self._routes.link(host)) is not None:
            tunnels.send(self._host, link, cast.head(packed), [cast.piece], cast.caller)


class _Shared(NamedTuple):
    """A cast as a record of the session with each of its hosts."""

    own: int
    cast: TreeCast

    def pieces_for(self, host: int) -> Body:
        part = self.cast.part_of(host).counted()
        ends = wire.gateway_id(self.own), wire.gateway_id(host)
        return list(pieces.in_parts(*ends, part.head(), [part.piece]))


class _Trunk(NamedTuple):
    """A host right under the controller, with those of a cast under it. `packed`: the branch;
    `under`: the link to each but the first, the host that it is under, and the place of that."""

    branch: Branch
    packed: bytes
    under: Sequence[tuple[Link, int, int]]

    @property
    def host(self) -> int:
        return self.branch.nodes[0].host


class _CastPlan(NamedTuple):
    """How a cast to these is sent, after so many changes of the tree: to trunks of it, and to hosts
    that are reached alone."""

    changes: int
    runs: Sequence[Run]
    trunks: Sequence[_Trunk]
    alone: Mapping[int, list[Run]]


def _planned(
    changes: int, runs: Sequence[Run], under: Mapping[int, int], links: Mapping[int, Link]
) -> _CastPlan:
    alone = dict(by_host(runs))
    children: dict[int, list[int]] = {}
    seen: set[int] = set()
    for each in alone:
        host = each
        while host not in seen:
            seen.add(host)
            above = under.get(host)
            if above is None or host not in links:
                break
            children.setdefault(above, []).append(host)
            host = above
    trunks = []
    for top in [host for host in children if host not in under]:
        branch = Branch.of(top, children, alone)
        places = {node.host: at for at, node in enumerate(branch.nodes)}
        below = [node.host for node in branch.nodes[1:]]
        ways = [(links[host], under[host], places[under[host]]) for host in below]
        trunks.append(_Trunk(branch, branch.pack(), ways))
    for trunk in trunks:
        for node in trunk.branch.nodes:
            alone.pop(node.host, None)
    return _CastPlan(changes, runs, trunks, alone)
