"""Who looks at the board of this host, and when it is sampled for them.

All are told at the pace of the most eager; nothing is sampled while nobody looks.
"""

from __future__ import annotations

from typing import Final

from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.host.status.board import News, Sampler
from monarch_nb.host.status.gpus import Gpus

FASTEST_S: Final = 0.1
SLOWEST_S: Final = 10.0


class Viewers:
    """Processes that look, each with the period it asked for."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus or Gpus()
        self.sampler = Sampler(self._gpus.use_of)
        self._periods: dict[int, float] = {}
        self._sample_at = 0.0

    def begin(self, viewer: int, period_s: float, now: float) -> messages.Board:
        """It looks from now on, or at another pace; everything as it is now."""
        self._periods[viewer] = min(SLOWEST_S, max(FASTEST_S, period_s))
        self._gpus.look()
        if self._periods.keys() == {viewer}:  # others wait for what has changed
            self.sampler.changes(now)
            self._sample_at = now + self._period_s()
        self._sample_at = min(self._sample_at, now + self._period_s())
        return _told(self.sampler.all(), now)

    def end(self, viewer: int) -> None:
        if self._periods.pop(viewer, None) is not None and not self._periods:
            self._gpus.rest()

    def due(self) -> float | None:
        return self._sample_at if self._periods else None

    def news(self, now: float) -> tuple[list[int], messages.Board] | None:
        """Whom to tell what, if a sample is due and something has changed."""
        if not self._periods or now < self._sample_at:
            return None
        self._sample_at = now + self._period_s()
        changes = self.sampler.changes(now)
        if not changes.ranks and not changes.usage:
            return None
        return list(self._periods), _told(changes, now)

    def _period_s(self) -> float:
        return min(self._periods.values())


def _told(news: News, now: float) -> messages.Board:
    # ranks may have written while others were read
    now_ns = max([int(now * 1e9), *(row[2] for row in news.ranks)])
    return messages.Board(now_ns, news.ranks, news.usage)
