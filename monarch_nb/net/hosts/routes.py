"""Which way a message goes to another host: over its own link, or through the controller's.

On a host the first message to another one waits until the two are introduced. Only the thread of
the loop sends there; the controller's own hosts may be sent to by any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from monarch_nb.net.hosts.link import Link
from monarch_nb.net.hosts.pieces import Piece
from monarch_nb.net.hosts.session import Flow


class Routes:
    """The links of this host, and what waits for one. `ask(host)` asks to be introduced."""

    def __init__(self, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}
        self._waiting: dict[int, list[tuple[Flow, Sequence[Piece]]]] = {}
        self._detoured: set[int] = set()
        self._controller: Link | None = None
        self._left: int | None = None  # the host of a controller that has gone, until one comes

    @property
    def links(self) -> list[Link]:
        return list(self._links.values())

    def link(self, host: int) -> Link | None:
        """Return the link to a host, if it has one of its own."""
        return self._links.get(host)

    @property
    def controller(self) -> Link | None:
        """The link to the host to which all others are known; None: this is it."""
        return self._controller

    @property
    def is_left(self) -> bool:
        """Tell whether the controller has gone and the links to others have stayed."""
        return self._left is not None

    def send(self, host: int, flow: Flow, pieces: Sequence[Piece]) -> None:
        """Send pieces of a message to a process of this host. What nobody knows is dropped."""
        link = self._links.get(host) or self._other_way(host, flow, pieces)
        if link is not None:
            link.send(flow, pieces)

    def _other_way(self, host: int, flow: Flow, pieces: Sequence[Piece]) -> Link | None:
        is_first = False
        with self._lock:
            if (link := self._links.get(host)) is not None:  # just now
                return link
            if host == self._left:
                return None
            has_controller = self._controller is not None or self.is_left
            waiting = self._waiting.get(host)
            if waiting is None and has_controller and host not in self._detoured:
                waiting = self._waiting[host] = []
                is_first = True
            if waiting is None:
                return self._controller
            waiting.append((flow, pieces))
        if is_first:
            self._ask(host)
        return None

    def want(self, host: int) -> None:
        """Ask to be introduced to a host, unless that was done or there is no way but the
        controller's."""
        with self._lock:
            if host in self._links or host in self._waiting or host in self._detoured:
                return
            self._waiting[host] = []
        self._ask(host)

    def hold(self, host: int) -> None:
        """Keep what is sent to a host until there is a way."""
        with self._lock:
            self._waiting.setdefault(host, [])

    def add(self, link: Link) -> None:
        """Reach a host over its own link from now on."""
        with self._lock:
            for flow, pieces in self._waiting.pop(link.host, ()):
                link.send(flow, pieces)
            self._links[link.host] = link

    def serve(self, controller: Link) -> None:
        """Leave all hosts that have no link to the controller's. What waits for one, since the
        controller before has gone, is asked for again."""
        self._controller, self._left = controller, None
        self.add(controller)
        for host in list(self._waiting):
            self._ask(host)

    def leave_controller(self) -> None:
        """Have no controller until the next one comes; links to others stay, and what is for those
        that have none waits."""
        controller = self._controller
        if controller is not None:
            with self._lock:
                self._links.pop(controller.host, None)
                self._detoured.clear()
                self._controller, self._left = None, controller.host

    def remove(self, host: int) -> Link | None:
        """Reach a host no more over its own link, which is returned."""
        with self._lock:
            return self._links.pop(host, None)

    def detour(self, host: int) -> None:
        """Reach a host through the controller's from now on."""
        with self._lock:
            self._detoured.add(host)
            waiting = self._waiting.pop(host, ())
        for flow, pieces in waiting:
            self.send(host, flow, pieces)

    def forget(self, host: int) -> None:
        """Drop what waits for a host."""
        with self._lock:
            self._waiting.pop(host, None)

    def clear(self) -> list[Link]:
        """Forget all; return the links that there were."""
        with self._lock:
            links = list(self._links.values())
            for each in (self._links, self._waiting, self._detoured):
                each.clear()
            self._controller = self._left = None
        return links
