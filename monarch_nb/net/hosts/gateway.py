"""Relays messages between the processes of this host and its links to other hosts.

Rules: nothing is decoded but the relay header, which says from whom and to whom, and what is for
the gateway itself. All of it happens in the thread of one loop, but `send`, which is for any.
Whatever comes, the loop goes on: what makes no sense is dropped and counted.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from monarch_nb.config import Config
from monarch_nb.core.casting import Cast, Run, by_host
from monarch_nb.core.reply_folding import HOLD_S, TREE_HOLD_S, Leaving, ReplyFolder
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import Buffer, Message
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.actors import Release
from monarch_nb.core.wire.messages.agents import Exited, Watch
from monarch_nb.core.wire.messages.hosts import (
    ControllerLost,
    GoUnder,
    HostGone,
    Introduce,
    KeptHere,
    Way,
    WayLost,
)
from monarch_nb.errors import BrokenError, RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.hosts import pieces
from monarch_nb.net.hosts.bulk.borrowing import Borrowing
from monarch_nb.net.hosts.bulk.joiner import Joiner, own_rooms
from monarch_nb.net.hosts.dialing import Connection
from monarch_nb.net.hosts.direct import DirectLinks
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.introductions import Introductions, Told
from monarch_nb.net.hosts.link import Link, Timing
from monarch_nb.net.hosts.listener import Listener
from monarch_nb.net.hosts.routes import Routes
from monarch_nb.net.hosts.tree.node import TreeNode
from monarch_nb.net.hosts.tree.root import TreeRoot
from monarch_nb.net.local import Lender, LocalProcesses, Take
from monarch_nb.net.loop import Loop
from monarch_nb.net.stream_inbox import StreamInbox

_LINGER_S: Final = 0.5
_FORKED: Final = "this process was forked from a member of a mesh and cannot send"
OnLost = Callable[[int, str, float | None], None]
"""A host, why it is lost, and for how long it was silent, if that is why."""


def ignore(_host: int, _silent_s: float | None) -> None:
    """Do nothing about a host that has become silent, or is heard again."""


class Gateway:
    """Relays for the processes whose sockets lie in `run_dir`.

    Args:
        host: the number of this host.
        here: what takes the messages to processes that are this very one, by their ids.
        on_lost: is called once for each host that is lost.
        on_pulse: is called with a host, and for how long it has been silent, or None when it is
            heard again.
        fan_out: of the tree below this host, if it is the controller's.
        lender: puts large values from other hosts where all processes of this one find them, and
            maps what these lend.
        watch: has `ended` called when a process of this host ends; None: its agent does.
    """

    def __init__(
        self,
        run_dir: Path,
        host: int,
        loop: Loop,
        timing: Timing,
        *,
        on_lost: OnLost,
        on_pulse: Callable[[int, float | None], None] = ignore,
        here: Mapping[int, Take] | None = None,
        lender: Lender | None = None,
        fan_out: int = Config.fan_out,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self._run_dir = run_dir
        self.host = host
        self._loop = loop
        self._timing = timing
        self._on_lost = on_lost
        self._on_pulse = on_pulse
        self._malformed = 0
        self._rooms = own_rooms if lender is None else lender.rooms
        self._joiner = Joiner(self._rooms)
        self._is_let_go_due = False
        self._is_kept = False
        self._untold: list[tuple[int, object]] = []  # to gateways, since the controller has gone
        self._inbox = self._new_inbox()
        self._local = LocalProcesses(run_dir, loop, lender, watch or self._watch, here or {})
        self._borrowing = Borrowing(lender, loop, self._give_back)
        self._routes = Routes(self._ask_for)
        self._introductions = Introductions()
        self._direct = DirectLinks(self._routes, timing, self._new_link, self._tell, self._way_lost)
        self._root = TreeRoot(host, fan_out, self._routes, self._tell, self._deliver)
        self._folder, self._node = self._new_node()
        self._listeners: list[Listener] = []
        loop.every(timing.pulse_s / 2, self._tick)

    @property
    def malformed(self) -> int:
        """How many messages made no sense."""
        return self._malformed + self._inbox.malformed

    @property
    def links(self) -> list[Link]:
        """The links to other hosts that there are."""
        return self._routes.links

    @property
    def is_served(self) -> bool:
        """Tell whether a controller has this host."""
        return self._routes.controller is not None

    @property
    def is_left(self) -> bool:
        """Tell whether the controller has gone, and what it has left here goes on."""
        return self._routes.is_left

    def listen(self, listener: socket.socket) -> None:
        """Let hosts with which a session is begun connect here; pass on who wants to join."""
        joins = lambda: wire.connect_joins(self._run_dir)  # noqa: E731
        self._listeners.append(Listener(listener, self._loop, self._link_of, joins))

    def accept_no_more(self) -> None:
        """Let nobody else connect. The loop's thread."""
        for each in self._listeners:
            each.accept_no_more()

    def awaited(self, host: int) -> Secret | None:
        """Return the secret of a host that was linked and has not connected yet. Any thread."""
        link = self._routes.link(host)
        return None if link is None or link.has_been_reached else link.secret

    # links: the loop's thread

    def expect(self, host: int) -> None:
        """Keep what is sent to a host until it is linked. Any thread."""
        self._routes.hold(host)
        self._introductions.expect(host)

    def give_up(self, host: int) -> None:
        """Forget a host that was expected, with what was sent there. The loop's thread."""
        self._routes.forget(host)
        self._tell_all(self._introductions.give_up(host))

    def link(
        self,
        host: int,
        secret: Secret,
        others: Sequence[str],
        dial: Sequence[str],
        *,
        is_back: bool = False,
    ) -> None:
        """Be the controller of a host: connect to it at one of `dial`, or wait for it where there
        is none. Other hosts may reach it at one of `others`. `is_back`: another controller has had
        it."""
        told = self._introductions.add(host, others, is_back=is_back)
        self._root.add(host)
        self._routes.add(self._new_link(host, secret, self._timing, dial))
        self._tell_all(told)

    def turn_out(self, host: int, why: str) -> None:
        """Tell a host that it is not wanted any more, and why; to this one it is lost."""
        self._tell(host, KeptHere(False))
        self._leave_host(host, why)

    def let_go(self, host: int) -> None:
        """Leave a host whose ranks are kept, as if this process ended. The loop's thread."""
        if (link := self._routes.link(host)) is not None:
            link.leave(_LINGER_S)
            self._forget_link(link)  # other hosts go on with it

    def _leave_host(self, host: int, why: str) -> None:
        if (link := self._routes.link(host)) is not None:
            link.leave(_LINGER_S, why)
            self.on_lost(link, why, None)

    def serve(
        self,
        controller: int,
        secret: Secret,
        dial: Sequence[str] = (),
        first: Connection | None = None,
    ) -> None:
        """Have a controller: connect to its host, with this connection at first, or wait for it
        where there is nothing to dial."""
        link = Link(controller, secret, self._loop, self._timing, self, dial, first)
        self._routes.serve(link)
        untold, self._untold = self._untold, []
        self._tell_all(untold)
        self._direct.tell_again()

    def leave_controller(self, why: str, linger_s: float = _LINGER_S) -> None:
        """Tell the controller that this host leaves it, and why; to this host it is lost."""
        self._is_kept = False
        if (link := self._routes.controller) is not None:
            link.leave(linger_s, why)
            self.on_lost(link, why, None)

    def rename(self, host: int) -> None:
        """Take the number that a controller gives this host."""
        if host == self.host:  # that of the client before
            return
        self._malformed += self._inbox.malformed
        self._inbox.stop()  # nothing has failed, so what is there is ours no more
        self.host = host
        self._folder, self._node = self._new_node()
        self._inbox = self._new_inbox()

    def close(self, linger_s: float = _LINGER_S) -> None:
        """Say to all that this host leaves, once what was sent is written. Any thread but the
        loop's."""
        self._loop.call(lambda: self._close(linger_s))
        self._local.close()
        for path in wire.socket_paths(self._run_dir, wire.gateway_id(self.host)):
            path.unlink(missing_ok=True)

    def _close(self, linger_s: float) -> None:
        for link in self._root.furthest_first(self.links):
            link.leave(linger_s)
        self._routes.clear()
        self._joiner.forget()
        self._local.drop()
        for each in self._listeners:
            each.stop()
        self._inbox.stop()

    def sever(self) -> None:
        """Let go of the parent's sockets in a forked child."""
        for link in self.links:
            link.sever()
        for each in self._listeners:
            each.sever()
        self._inbox.close()

    # sending

    def ended(self, process: int) -> None:
        """Hold nothing any more for a process of this host, or of it. The loop's thread."""
        self._local.ended(process)

    def take_up(self, bodies: Sequence[Buffer], runs: Sequence[Run]) -> Sequence[Buffer]:
        """Return a message of this very process with what it has lent to processes of other hosts
        in its place, as nobody changes it any more. Any thread."""
        if len(bodies) == 1:
            return bodies
        constant = [each if type(each) is bytes else bytes(memoryview(each)) for each in bodies]
        return self._borrowing.take_up(constant, runs)

    def _give_back(self, owner: int, release: Release) -> None:
        if self._local.may_live(owner):
            self._local.deliver(owner, [self._control(release)])
        else:
            self._local.ended(owner)  # what was on its way then is held no more

    def send(self, source: int, process: int, bodies: Sequence[Buffer]) -> None:
        """Send a message to a process of another host. Any thread."""
        if process >> frames.HOST_SHIFT == self.host:  # itself
            self._loop.soon(functools.partial(self._deliver, process, bodies))
            return
        cut = pieces.cut(source, process, bodies)
        self._routes.send(process >> frames.HOST_SHIFT, (source, process), cut)

    def cast(self, source: int, cast: Cast) -> None:
        """Send a message to processes of other hosts, once to each host. Any thread."""
        for host, runs in self._root.cast(source, cast).items():
            self.send(source, wire.gateway_id(host), cast._replace(runs=runs).pack(source))

    def _tell(self, host: int, message: object) -> None:
        # to the gateway of a host, by the way over which both are introduced
        own, there = wire.gateway_id(self.host), wire.gateway_id(host)
        cut = pieces.cut(own, there, [self._control(message)])
        if (controller := self._routes.controller) is not None:
            controller.send((own, there), cut)
        elif self._routes.is_left:
            self._untold.append((host, message))
        else:
            self._routes.send(host, (own, there), cut)

    def _control(self, message: object) -> bytes:
        own = wire.gateway_id(self.host)
        header = frames.HEADER.pack(frames.CONTROL, 0, 0, 0, 0, frames.CONTROL_PORT, own, 0)
        return header + codec.encode(message)

    def _tell_all(self, told: Told) -> None:
        for host, message in told:
            self._tell(host, message)

    def _ask_for(self, host: int) -> None:
        controller = self._routes.controller
        if controller is not None and not self._direct.is_ending(host):
            self._tell(controller.host, Introduce(host))

    # receiving: the loop's thread

    def on_piece(self, piece: Message) -> None:
        """Hand on what has come over a link."""
        if piece.kind != frames.RELAY:
            raise RemoteProtocolError("what travels between hosts says to whom")
        host = piece.port >> frames.HOST_SHIFT
        if host != self.host:
            self._routes.send(host, (piece.source, piece.port), [pieces.again(piece)])
        elif (message := self._joiner.take(piece)) is not None:
            self._deliver(piece.port, message)

    def room_for(self, part: Message) -> memoryview:
        """Return where what is in a part goes."""
        if part.port >> frames.HOST_SHIFT != self.host:
            return memoryview(bytearray(part.reply))
        return self._joiner.room(part, part.reply)

    def on_part(self, part: Message, data: memoryview) -> bool:
        """Hand on a part that has come; tell whether it was the last of its message."""
        if part.port >> frames.HOST_SHIFT != self.host:
            flow = part.source, part.port
            self._routes.send(part.port >> frames.HOST_SHIFT, flow, [pieces.Part.of(*flow, data)])
            return False
        message = self._joiner.filled(part, len(data))
        if message is not None:
            self._deliver(part.port, message)
        return message is not None

    def _from_here(self, message: Message) -> None:
        if message.kind != frames.RELAY:
            raise RemoteProtocolError("a gateway takes only what is for processes of other hosts")
        bodies: Sequence[Buffer] = [message.payload, *message.buffers]
        if message.port >> frames.HOST_SHIFT == self.host:
            self._deliver(message.port, bodies)
        else:
            bodies = self._borrowed(bodies, [Run(message.port, 0, 1)])
            leaving = self._folder.take(message.source, message.port, bodies)
            self._send_all(message.port, leaving)

    def _send_all(self, caller: int, leaving: Leaving) -> None:
        for each in leaving:
            is_folded = wire.gateway_id(self.host) == each.source
            if not is_folded or not self._node.send_folded(caller, each):
                self.send(each.source, caller, each.bodies)
        if self._folder.is_holding and not self._is_let_go_due:
            self._is_let_go_due = True
            self._loop.after(TREE_HOLD_S if self._node.carries else HOLD_S, self._let_go)

    def _borrowed(self, bodies: Sequence[Buffer], runs: Sequence[Run]) -> Sequence[Buffer]:
        # with what a process here has lent to those of other hosts in its place
        if len(bodies) == 1:
            return bodies
        if (lender := self._borrowing.lender_of(bodies)) is not None:
            self._local.watch(lender)
        return self._borrowing.take_up(bodies, runs)

    def _let_go(self) -> None:
        self._is_let_go_due = False
        for caller, leaving in self._folder.let_go().items():
            self._send_all(caller, leaving)

    def _deliver(self, process: int, message: Sequence[Buffer]) -> None:
        if process == wire.gateway_id(self.host):
            self._told(message)
        else:
            self._local.deliver(process, message)

    def _told(self, message: Sequence[Buffer]) -> None:
        # by another gateway, the agent, or a process of this host
        for each in frames.open_frames(message):
            match each.kind:
                case frames.CAST:
                    self._spread(each.source, Cast.unpack(each.payload, each.buffers))
                case frames.TREE_CAST:
                    self._node.on_cast(each)
                case frames.TREE_FOLD:
                    self._tree.on_fold(each)
                case frames.TUNNEL:
                    self._tree.on_record(each)
                case _:
                    self._control_told(each)

    @property
    def _tree(self) -> TreeRoot | TreeNode:
        return self._root if self._is_controllers else self._node

    @property
    def _is_controllers(self) -> bool:
        return self._routes.controller is None and not self._routes.is_left

    def _control_told(self, message: Message) -> None:
        body, host = codec.json_of(message.payload), message.source >> frames.HOST_SHIFT
        match body.get("verb"):
            case "introduce":
                wanted = codec.decode(Introduce, body).host
                self._tell_all(self._introductions.introduce(host, wanted))
            case "release":
                self._local.release(codec.decode(Release, body).segment, message.source)
            case "exited":
                self._local.ended(codec.decode(Exited, body).proc)
            case "go_under":
                self._node.go_under(codec.decode(GoUnder, body).parent)
            case "way_lost":
                self._told_of_way(host, codec.decode(WayLost, body))
            case "kept_here":
                self._is_kept = codec.decode(KeptHere, body).is_kept
            case "silent" | "heard":
                pass  # a rank that is not dead keeps what it was lent
            case verb:
                if verb == "host_gone":
                    self._joiner.forget(codec.decode(HostGone, body).host)
                self._direct.told(host, body)

    def _spread(self, source: int, cast: Cast) -> None:
        if source >> frames.HOST_SHIFT == self.host:
            cast = cast._replace(bodies=self._borrowed(cast.bodies, cast.runs))
        hosts = dict(by_host(cast.runs))
        here = hosts.pop(self.host, [])
        _, _, _, _, _, _, caller, reply = frames.parse_header(bytes(cast.bodies[0]))
        count = sum(run.size for run in here)
        if reply and count > 1 and caller >> frames.HOST_SHIFT != self.host:
            self._folder.expect(caller, reply, count)
        if here:
            self._hand_out(cast._replace(runs=here))
        away = [run for runs in hosts.values() for run in runs]
        if away:
            self.cast(source, cast._replace(runs=away))

    def _hand_out(self, cast: Cast) -> None:
        self._local.deliver_all(cast)

    def _watch(self, process: int) -> None:
        self._local.deliver(wire.agent_id(self.host), [self._control(Watch([process]))])

    # what links tell: the loop's thread

    def on_silent(self, link: Link, silent_s: float) -> None:
        controller = self._routes.controller
        if self._direct.has(link):
            self._way_lost(link.host, Way.SILENT)
            return
        if link is controller:
            self._node.tell_below(Way.SILENT)
        self._on_pulse(link.host, silent_s)

    def _way_lost(self, host: int, way: Way) -> None:
        # the controller may be reached through that host, or that host through this one
        if (controller := self._routes.controller) is not None:
            self._node.way_lost(host, Way.SILENT if way is Way.SILENT else Way.LOST)
            self._tell(controller.host, WayLost(host, way))

    def _told_of_way(self, by: int, lost: WayLost) -> None:
        if lost.way not in list(Way):
            raise RemoteProtocolError(f"no way can be {lost.way!r:.80}")
        if self._is_controllers:
            self._root.way_lost(by, lost.host, Way(lost.way))
        else:
            self._node.way_lost(by, Way(lost.way))

    def on_way(self, link: Link) -> None:
        if self._is_controllers:
            self._root.way_changed(link)

    def on_heard(self, link: Link) -> None:
        if not self._direct.has(link):
            self._on_pulse(link.host, None)

    def on_lost(self, link: Link, why: str, silent_s: float | None) -> None:
        """Forget a link, and all that came over it and is not whole; a direct one is replaced by
        the way through the controller's."""
        self._malformed += link.malformed
        if self._direct.has(link):
            self._way_lost(link.host, Way.of(silent_s))
            self._direct.lost(link)
            return
        if link is self._routes.controller:
            self._node.tell_below(Way.of(silent_s))
            if self._is_kept:
                self._go_on()
            else:
                self._drop_all()
        else:
            self._forget_host(link)
        self._on_lost(link.host, why, silent_s)

    def _drop_all(self) -> None:
        for each in self._routes.clear():
            each.leave(_LINGER_S)
        self._direct.clear()
        self._joiner.forget()
        self._folder.forget()
        self._local.drop()

    def _go_on(self) -> None:
        # without the controller, what processes of this host and others say to each other
        self._let_go()
        self._folder.forget()
        self._joiner.forget_all_but(self._direct.hosts)
        self._routes.leave_controller()
        self._local.deliver(wire.agent_id(self.host), [self._control(ControllerLost())])

    def _forget_host(self, link: Link) -> None:
        self._tell_all(self._forget_link(link))

    def _forget_link(self, link: Link) -> Told:
        # what other hosts are told where its host is lost
        self._routes.remove(link.host)
        self._joiner.forget(link.host)
        self._root.remove(link.host)
        return self._introductions.remove(link.host)

    def _new_link(
        self, host: int, secret: Secret, timing: Timing, addresses: Sequence[str]
    ) -> Link:
        return Link(host, secret, self._loop, timing, self, addresses)

    def _tick(self, now: float) -> None:
        for link in self.links:
            link.tick(now)
        self._root.tick(now)
        for each in self._listeners:
            each.tick(now)

    def _link_of(self, session: bytes) -> Link | None:
        links = self.links
        return next((link for link in links if link.secret.session == session), None)

    def _new_node(self) -> tuple[ReplyFolder, TreeNode]:
        folder = ReplyFolder(wire.gateway_id(self.host))
        return folder, TreeNode(
            self.host,
            self._routes,
            folder,
            self._hand_out,
            self._send_all,
            self._control,
            self._rooms,
        )

    def _new_inbox(self) -> StreamInbox:
        process = wire.gateway_id(self.host)
        return StreamInbox(self._run_dir, process, self._loop, self._from_here)


class GatewayRelay:
    """The way to other hosts for the very process in which the gateway is."""

    def __init__(self, gateway: Gateway, own: int) -> None:
        self._gateway = gateway
        self._own = own
        self._is_severed = False

    def send(self, process: int, parts: Sequence[Buffer]) -> None:
        if self._is_severed:
            raise BrokenError(_FORKED)
        self._gateway.send(self._own, process, self._gateway.take_up(parts, [Run(process, 0, 1)]))

    def cast(self, cast: Cast) -> None:
        if self._is_severed:
            raise BrokenError(_FORKED)
        bodies = self._gateway.take_up(cast.bodies, cast.runs)
        self._gateway.cast(self._own, cast._replace(bodies=bodies))

    def sever(self) -> None:
        self._is_severed = True
        self._gateway.sever()

    def close(self, linger_s: float) -> None:
        """The gateway is closed by whom it belongs to."""
