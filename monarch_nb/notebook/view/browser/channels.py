"""Who looks, through which channel, at what and how often: decides what is due when.

Pure: no thread, no clock; times come in and what is to be sent comes out. A channel is one comm or
one widget; several clients (views, tabs) may share it, and then the fastest period and everything
that any of them wants is sent to all. A client that is silent is forgotten, and comes back with its
next sign of life, as browsers let hidden pages speak once a minute. A line of the log is sent once
to a channel, whoever of its clients follows; each drops what it has seen.

What ranks tell is passed on when it comes, not at the next tick of a clock of our own: they are
sampled in that rhythm already, and one clock after the other would let people wait twice. A rank
that dies, and a mesh that comes, do not wait for a channel's period.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.notebook.view.browser.protocol import Follow, Hello
from monarch_nb.notebook.view.feed.inputs import View

if TYPE_CHECKING:
    from monarch_nb.control.output.tail import Line

SILENCE_S: Final = 30.0
STATE_S: Final = 0.1  # between two states for one client
EARLY_S: Final = 0.02  # news that come as often as they may must not wait for being a little early
URGENT_S: Final = 0.1  # between two updates of which the later cannot wait for its period
MAX_CLIENTS: Final = 64  # of a channel
MAX_DORMANT: Final = 64

MAX_LINES: Final = 500  # of one message; of more the last are sent


class Turn(NamedTuple):
    """Messages for a channel: the delta from `base` (None: nobody has a state), then states."""

    channel: int
    base: int | None
    states: tuple[str, ...]
    view: View


@dataclass
class _Client:
    hello: Hello
    heard: float
    wants_state: bool = True
    state_at: float = float("-inf")

    def state_due(self) -> float:
        return self.state_at + STATE_S


class _Channel:
    def __init__(self) -> None:
        self.clients: dict[str, _Client] = {}
        self.dormant: dict[str, Hello] = {}
        self.base: int | None = None
        self.looked_at = self.told_at = float("-inf")
        self.news_at: float | None = None
        self.is_urgent = False
        self.view = View()
        self.period_s = float("inf")

    def put(self, client: _Client) -> None:
        self.clients[client.hello.client] = client
        self._sum_up()

    def drop(self, name: str) -> None:
        # It does not look any more
        self.clients.pop(name, None)
        self._sum_up()
        if not self.clients:
            self.base = None

    def _sum_up(self) -> None:
        hellos = [client.hello for client in self.clients.values()]
        parts = frozenset[str]().union(*(hello.parts for hello in hellos))
        names = [hello.mesh for hello in hellos]
        meshes = frozenset(name for name in names if name is not None)
        self.view = View(parts, None if None in names else meshes)
        self.period_s = min((hello.period_s for hello in hellos), default=float("inf"))

    def due(self) -> float:
        wanting = [client.state_due() for client in self.clients.values() if client.wants_state]
        period_s = self.period_s
        due = self.looked_at + max(period_s, min(1.5 * period_s, 1.0))
        if self.news_at is not None:
            apart_s = min(period_s, URGENT_S) if self.is_urgent else period_s
            due = min(due, max(self.news_at, self.told_at + apart_s - EARLY_S))
        return min([due, *wanting]) if wanting else due


class Channels:
    """All channels of a kernel, by number."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}

    def hello(self, number: int, hello: Hello, now: float) -> bool:
        """Add a client, or what it wants now. False if there are too many."""
        channel = self._channels.setdefault(number, _Channel())
        known = channel.clients.get(hello.client)
        if known is None and len(channel.clients) >= MAX_CLIENTS:
            return False
        before = channel.view
        channel.dormant.pop(hello.client, None)
        state_at = known.state_at if known is not None else float("-inf")
        channel.put(_Client(hello, now, state_at=state_at))
        if channel.view != before:
            self.resync(number)  # deltas tell of what the others have not been told yet
        return True

    def heard(self, number: int, client: str, now: float) -> bool:
        """Note a sign of life. False if nobody knows the client: it has to say hello."""
        channel = self._channels.get(number)
        if channel is None:
            return False
        if (known := channel.clients.get(client)) is not None:
            known.heard = now
            return True
        hello = channel.dormant.pop(client, None)
        return hello is not None and self.hello(number, hello, now)

    def bye(self, number: int, client: str) -> None:
        if (channel := self._channels.get(number)) is not None:
            channel.drop(client)
            channel.dormant.pop(client, None)

    def close(self, number: int) -> None:
        self._channels.pop(number, None)

    def resync(self, number: int) -> None:
        """Have each client of the channel get a state."""
        for client in self._channels[number].clients.values():
            client.wants_state = True

    def clients(self, number: int) -> tuple[str, ...]:
        """Return who looks through a channel."""
        channel = self._channels.get(number)
        return tuple(channel.clients) if channel is not None else ()

    def news(self, at: float, *, urgent: bool = False) -> None:
        """Note that from that moment on, a look will see something new."""
        for channel in self._looked_at():
            channel.is_urgent |= urgent
            if channel.news_at is None:
                channel.news_at = at

    def turns(self, now: float) -> list[Turn]:
        """Return what is to be looked at now. Forgets clients that are silent."""
        self._forget_silent(now)
        return [
            self._turn(number, channel, now)
            for number, channel in self._channels.items()
            if channel.clients and channel.due() <= now
        ]

    def told(self, number: int, n: int) -> None:
        """Note that the channel has been sent what there is up to update `n`."""
        if (channel := self._channels.get(number)) is not None:
            channel.base = n
            channel.told_at = channel.looked_at

    def next_at(self) -> float | None:
        """Return when something is due next; None while nobody looks."""
        return min((channel.due() for channel in self._looked_at()), default=None)

    def period_s(self) -> float | None:
        """Return the smallest period; None while nobody looks."""
        return min((channel.period_s for channel in self._looked_at()), default=None)

    def parts(self) -> frozenset[str]:
        """Return everything that anybody wants."""
        return frozenset[str]().union(*(channel.view.parts for channel in self._looked_at()))

    def __len__(self) -> int:
        return sum(len(channel.clients) for channel in self._channels.values())

    def __repr__(self) -> str:
        counts = [len(channel.clients) for channel in self._channels.values()]
        return f"<Channels: {len(counts)}, clients: {counts}>"

    def _looked_at(self) -> Iterable[_Channel]:
        return (channel for channel in self._channels.values() if channel.clients)

    def _turn(self, number: int, channel: _Channel, now: float) -> Turn:
        wanting = [
            name
            for name, client in channel.clients.items()
            if client.wants_state and client.state_due() <= now
        ]
        for name in wanting:
            client = channel.clients[name]
            client.wants_state, client.state_at = False, now
        channel.looked_at, channel.news_at, channel.is_urgent = now, None, False
        is_first = len(wanting) == len(channel.clients)  # nobody needs the delta
        return Turn(number, None if is_first else channel.base, tuple(wanting), channel.view)

    def _forget_silent(self, now: float) -> None:
        for channel in self._channels.values():
            for name, client in list(channel.clients.items()):
                if now - client.heard > SILENCE_S:
                    channel.drop(name)
                    channel.dormant[name] = client.hello
                    if len(channel.dormant) > MAX_DORMANT:
                        del channel.dormant[next(iter(channel.dormant))]


class LogSubscribers:
    """Who of one channel follows the log."""

    def __init__(self) -> None:
        self._wanted: dict[tuple[str, str | None, tuple[int, ...] | None], Follow] = {}
        self.seq: int | None = None  # of the last line that was looked at

    def follow(self, wish: Follow, last: int) -> None:
        """Take a wish. `last` is the number of the last line there is."""
        key = wish.client, wish.mesh, wish.ranks
        if not wish.on:
            self._wanted.pop(key, None)
            return
        self._wanted[key] = wish
        after = last if wish.after is None else wish.after
        self.seq = after if self.seq is None else min(self.seq, after)

    def looked_at(self, seq: int) -> None:
        self.seq = seq

    def keep_only(self, clients: Sequence[str]) -> None:
        self._wanted = {key: wish for key, wish in self._wanted.items() if key[0] in clients}
        if not self._wanted:
            self.seq = None

    @property
    def scope(self) -> tuple[str | None, tuple[int, ...] | None]:
        """The mesh and the ranks whose lines are wanted, or more than these."""
        wishes = list(self._wanted.values())
        if len(wishes) == 1:
            return wishes[0].mesh, wishes[0].ranks
        meshes = {wish.mesh for wish in wishes}
        return (meshes.pop() if len(meshes) == 1 else None), None

    def wanted(self, lines: Sequence[Line]) -> list[Line]:
        wishes = list(self._wanted.values())
        return [line for line in lines if any(_wants(wish, line) for wish in wishes)]

    def __bool__(self) -> bool:
        return bool(self._wanted)


def _wants(wish: Follow, line: Line) -> bool:
    return wish.mesh in (None, line.mesh) and (wish.ranks is None or line.rank in wish.ranks)
