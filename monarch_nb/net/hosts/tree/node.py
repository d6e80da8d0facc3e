"""A host's part of the tree: it may be reached through another one, and carry for others itself.

What it carries is what goes down to hosts under it and what comes up from them. A cast goes on to
those before it is spread here; the answers that they have folded are folded again with those of
this host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_nb.core.cast_tree import TreeCast, TreeFold
from monarch_nb.core.casting import Cast
from monarch_nb.core.reply_folding import Leaves, Leaving, Numbered, ReplyFolder
from monarch_nb.core.wire.frames import HEADER, HOST_SHIFT, Message
from monarch_nb.core.wire.messages.hosts import Way, WayLost
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.hosts import pieces
from monarch_nb.net.hosts.bulk.joiner import Joiner, Room
from monarch_nb.net.hosts.link import Link
from monarch_nb.net.hosts.pieces import Bytes
from monarch_nb.net.hosts.routes import Routes
from monarch_nb.net.hosts.tree import tunnels


class TreeNode:
    """The part of `host`. All of it happens in the loop's thread.

    Args:
        folder: folds what processes of this host answer.
        spread: hands a cast to processes of this host.
        let_go: sends to a process what leaves the folder.
        control: makes a message of this gateway.
        rooms: makes the memory for long messages.
    """

    def __init__(
        self,
        host: int,
        routes: Routes,
        folder: ReplyFolder,
        spread: Callable[[Cast], None],
        let_go: Callable[[int, Leaving], None],
        control: Callable[[object], bytes],
        rooms: Callable[[Sequence[int]], Sequence[Room]],
    ) -> None:
        self._host = host
        self._own = wire.gateway_id(host)
        self._routes = routes
        self._folder = folder
        self._spread = spread
        self._let_go = let_go
        self._control = control
        self._joiner = Joiner(rooms)
        self.carries = False
        """Casts for others, so that their answers are waited for."""

    # the way to the controller

    def go_under(self, parent: int) -> None:
        """Reach the controller through this host from now on, if there is a link to it; else ask
        for one, and wait to be told again."""
        controller, link = self._routes.controller, self._routes.link(parent)
        if controller is None or controller.through == parent:
            return
        if link is None:
            self._routes.want(parent)
        elif link.is_connected:
            to = controller.host
            controller.open(tunnels.tunnel(self._host, parent, to, self._routes.link))

    def way_lost(self, through: int, way: Way) -> None:
        """Reach the controller otherwise than through this host, if that is the way."""
        controller = self._routes.controller
        if controller is not None and controller.through in (through, None):
            controller.lose_tunnel(way)

    def tell_below(self, way: Way) -> None:
        """Tell all that may be under this host what has become of the way to the controller."""
        controller = self._routes.controller
        if controller is None:
            return
        message = self._control(WayLost(controller.host, way))
        for link in self._routes.links:
            if link is not controller:
                tunnels.send(self._host, link, message, [])

    # what is carried

    def on_record(self, message: Message) -> None:
        """Take a record of the session with the controller, or carry one on."""
        to, controller = message.port >> HOST_SHIFT, self._routes.controller
        if controller is None:
            return
        if to == self._host:
            through = tunnels.came_through(message)
            tunnel = tunnels.tunnel(self._host, through, controller.host, self._routes.link)
            controller.take_carried(tunnel, memoryview(message.payload))
        elif to == controller.host:
            self._let_all_go()
            tunnels.carry_on(self._host, controller, message)
        elif (link := self._routes.link(to)) is not None:
            tunnels.carry_on(self._host, link, message)

    def _let_all_go(self) -> None:
        # nothing overtakes what is held of the same host
        for caller, leaving in self._folder.let_go().items():
            self._let_go(caller, leaving)

    # casts and folds

    def on_cast(self, message: Message) -> None:
        """Send a cast on to hosts under this one, and to processes here."""
        cast = TreeCast.unpack(message)
        if cast.host != self._host:
            raise RemoteProtocolError(f"a cast for host {cast.host} and those under it")
        if not self._is_new(cast.numbers[0], len(cast.piece)):
            return
        piece = _one_piece(cast)
        if cast.reply and piece.tag != pieces.GOES_ON and cast.branch.receivers > 1:
            self._folder.expect(cast.caller, cast.reply, cast.branch.receivers)
        for each in cast.under():
            self.carries = True
            if (link := self._routes.link(each.host)) is not None:
                tunnels.send(self._host, link, each.head(), [each.piece])
        if cast.branch.own_runs and (whole := self._joiner.take(piece)) is not None:
            self._spread(Cast(cast.branch.own_runs, whole))

    def _is_new(self, number: int, size: int) -> bool:
        controller = self._routes.controller
        return not number or (controller is not None and controller.take_shared(number, size))

    def on_fold(self, message: Message) -> None:
        """Fold answers that a host under this one has folded with others."""
        fold = TreeFold.unpack(message)
        numbered = list(fold.numbered)
        self._let_go(
            fold.caller,
            self._folder.take_fold(message.source, fold.caller, numbered, bytes(fold.fold)),
        )

    def send_folded(self, caller: int, leaves: Leaves) -> bool:
        """Send folded answers to a process of the controller's host; tell whether that was for
        this to do."""
        controller = self._routes.controller
        if controller is None or caller >> HOST_SHIFT != controller.host:
            return False
        folded = memoryview(leaves.bodies[0])[HEADER.size :]
        if leaves.numbered:
            to, body = wire.gateway_id(controller.host), self._fold(caller, leaves.numbered, folded)
        else:
            to, body = caller, bytes(leaves.bodies[0])
        alone = list(pieces.cut_to_share(self._own, to, [body], pieces.PIECE_BYTES))
        if not self._send_shared(controller, caller, leaves.numbered, folded, alone):
            controller.send((self._own, caller), alone)
        return True

    def _send_shared(
        self,
        controller: Link,
        caller: int,
        numbered: Sequence[Numbered],
        folded: memoryview,
        alone: list[bytes],
    ) -> bool:
        through = controller.through
        link = None if through is None else self._routes.link(through)
        size = sum(map(len, alone))
        if link is None or size > pieces.PIECE_BYTES:
            return False
        number = controller.share(link.host, size, list[Bytes](alone))
        if number:
            own = Numbered(self._host, number, controller.received)
            tunnels.send(self._host, link, self._fold(caller, [own, *numbered], folded), [])
        controller.shared()
        return bool(number)

    def _fold(self, caller: int, numbered: Sequence[Numbered], folded: memoryview) -> bytes:
        return TreeFold(caller, numbered, folded).pack(self._own)


def _one_piece(cast: TreeCast) -> Message:
    found = list(pieces.read(memoryview(cast.piece)))
    if len(found) != 1:
        raise RemoteProtocolError(f"a cast with {len(found)} pieces")
    return found[0]
