"""Whether ranks go on without a controller, for how long, and who may take its place.

Pure: who asks says what time it is. An agent has one of two states, driven and alone, and goes from
one to the other as often as controllers come and go.
"""

from __future__ import annotations

import hmac

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.keeping import DRIVEN, Adopt, Keep


class Keeping:
    """Says whether the ranks of one agent are driven, and who may drive them."""

    def __init__(self) -> None:
        self.procs: frozenset[int] = frozenset()
        self._for_s = 0.0
        self._key = ""
        self._alone_since: float | None = None

    @property
    def is_alone(self) -> bool:
        return self._alone_since is not None

    def keep(self, wanted: Keep) -> None:
        self.procs = frozenset(wanted.procs)
        self._for_s, self._key = wanted.for_s, wanted.key

    def begin(self, now: float) -> None:
        """Be alone from now on."""
        self._alone_since = now

    def end(self, now: float) -> float | None:
        """Be driven from now on; return for how long it was alone."""
        since, self._alone_since = self._alone_since, None
        return None if since is None else now - since

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
