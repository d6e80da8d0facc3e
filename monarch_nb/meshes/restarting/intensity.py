"""How often what fails is started again: `restart`, and the decision for each rank.

As in Erlang's OTP: an intensity (`max`) and a period (`within_s`). Rule: no clock, no thread here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_nb.core.errors.folding import rank_words


@dataclass(frozen=True)
class Restart:
    """What `restart` returns: `max` restarts of a rank within any `within_s` seconds."""

    max: int
    within_s: float


def restart(*, max: int = 3, within_s: float = 60.0) -> Restart:  # noqa: A002  OTP's word
    """Have actors start again by themselves when they fail: `spawn(..., supervise=restart())`.

    Args:
        max: so many restarts of one rank within the period; the next failure of that rank goes to
            the owner of the mesh, as without `supervise`.
        within_s: the period, in seconds.

    Raises `TypeError` or `ValueError` for a `max` that is no whole number from 1 on, and for a
    `within_s` that is not above 0.

    Example:
        >>> procs.spawn("generators", Generator, supervise=restart(max=3, within_s=60))
        ...                                                                # doctest: +SKIP
    """
    if isinstance(max, bool) or not isinstance(max, int):
        raise TypeError(f"max={max!r}: how many restarts is a whole number")
    if isinstance(within_s, bool) or not isinstance(within_s, int | float):
        raise TypeError(f"within_s={within_s!r}: the period is a number of seconds")
    if max < 1:
        raise ValueError(f"max={max}: 1 restart or more; without any, leave supervise away")
    if not 0 < within_s < math.inf:
        raise ValueError(f"within_s={within_s!r}: the period is above 0 seconds, and has an end")
    return Restart(max, float(within_s))


class Intensity:
    """The restarts of one mesh so far, for each rank. Times are in seconds, of any one clock.

    Example:
        >>> restarts = Intensity(restart(max=1, within_s=10))
        >>> restarts.allows(2, now=100.0), restarts.allows(2, now=105.0)
        (True, False)
        >>> restarts.refusal([2])
        'rank 2 was restarted 1 time within 10 s'
    """

    def __init__(self, wanted: Restart) -> None:
        self.wanted = wanted
        self._at: dict[int, list[float]] = {}

    def allows(self, rank: int, now: float) -> bool:
        """Tell whether this rank may be started again, and count it if so. After a refusal its
        count begins anew, for whoever heals it."""
        since = now - self.wanted.within_s
        recent = [at for at in self._at.get(rank, ()) if at > since]
        if len(recent) >= self.wanted.max:
            self._at.pop(rank, None)
            return False
        self._at[rank] = [*recent, now]
        return True

    def refusal(self, ranks: Sequence[int]) -> str:
        """Say why they are not, for people."""
        times = "1 time" if self.wanted.max == 1 else f"{self.wanted.max} times"
        were = "was" if len(ranks) == 1 else "were"
        return f"{rank_words(ranks)} {were} restarted {times} within {self.wanted.within_s:g} s"
