"""Whether ranks go on without a controller, for how long, and who may take its place.

Pure: who asks says what time it is. An agent has one of two states, driven and alone, and goes from
one to the other as often as controllers come and go.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Iterable

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import DRIVEN, Adopt, Keep


class Then(enum.Enum):
    """What an agent does when it has lost whoever drove its ranks, or the way there."""

    END = enum.auto()
    GO_ON_ALONE = enum.auto()
    NOTHING = enum.auto()


class Keeping:
    """Says whether the ranks of one agent are driven, and who may drive them. `is_elsewhere`: the
    controller is a process of another host, and the agent's owner is the way there and to the next
    one."""

    def __init__(self, *, is_elsewhere: bool) -> None:
        self.procs: frozenset[int] = frozenset()
        self.is_elsewhere = is_elsewhere
        self._for_s = 0.0
        self._key = ""
        self._alone_since: float | None = None
        self._former: set[int] = set()

    @property
    def is_alone(self) -> bool:
        return self._alone_since is not None

    def keep(self, wanted: Keep) -> None:
        self.procs = frozenset(wanted.procs)
        self._for_s, self._key = wanted.for_s, wanted.key

    def owner_ended(self, living: Iterable[int], *, ending: bool) -> Then:
        """Say what follows from the end of the agent's owner. `living` are its ranks; `ending`: it
        was told to stop them all."""
        if self.is_elsewhere or ending or self.procs.isdisjoint(living):
            return Then.END
        return Then.NOTHING if self.is_alone else Then.GO_ON_ALONE

    def controller_lost(self, *, ending: bool) -> Then:
        """Say what follows from the loss of the link to the controller, which the gateway tells."""
        return Then.NOTHING if self.is_alone or ending else Then.GO_ON_ALONE

    def is_over(self, now: float) -> bool:
        """Tell whether nobody has come in time."""
        due = self.due()
        return due is not None and due <= now

    def begin(self, now: float) -> None:
        """Be alone from now on."""
        self._alone_since = now

    def end(self, old: int, new: int, now: float) -> float | None:
        """Be driven from now on by a controller in the place of the old one; return for how long
        it was alone."""
        self._former = (self._former | {old}) - {new}
        since, self._alone_since = self._alone_since, None
        return None if since is None else now - since

    def fenced(self, sender: int) -> Refused | None:
        """Return why the sender of any request is refused, if it was the controller and is no
        more: what it has sent before it knew that must not be done."""
        if sender not in self._former:
            return None
        return Refused("another controller drives these ranks now")

    def due(self) -> float | None:
        """Return when the time is over."""
        return None if self._alone_since is None else self._alone_since + self._for_s

    def alone_s(self, now: float) -> float:
        """Return for how long it has been alone."""
        return 0.0 if self._alone_since is None else now - self._alone_since

    def stranger(self, key: str) -> Refused | None:
        """Return why who shows this key has no part in the ranks, if it is another one's."""
        if not self._key or not hmac.compare_digest(self._key, key):
            return Refused("nothing is kept here under this key")
        return None

    def refusal(self, wanted: Adopt, driver: int | None) -> Refused | None:
        """Return why the sender may not drive the ranks; `driver` is the process that does."""
        if (refused := self.stranger(wanted.key)) is not None:
            return refused
        if not self.is_alone and not wanted.fence:
            who = "another controller" if driver is None else f"process {driver}"
            return Refused(f"{who} drives these ranks", DRIVEN)
        return None
