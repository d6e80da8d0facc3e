"""Which host is under which in the tree below a controller. Pure.

Each has at most `fan_out` right under it, and lies as near to the controller as there is room. When
one is lost, those right under it are given other places, with all that is under them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

_ROOT: Final = -1


class Plan:
    """The places of hosts, by their numbers. `fan_out` of them are right under the controller."""

    def __init__(self, fan_out: int) -> None:
        self._fan_out = fan_out
        self._parents: dict[int, int] = {}
        self._children: dict[int, set[int]] = {_ROOT: set()}
        self._order = itertools.count()
        self._places: list[tuple[int, int, int, int]] = []  # with room: depth, children, _, host
        self._offer(_ROOT)

    def add(self, host: int) -> None:
        """Give a new host a place."""
        self._children[host] = set()
        self._put(host, self._place_for(host))

    def parent_of(self, host: int) -> int | None:
        """Return the host that this one is under; None: it is right under the controller, or not
        known."""
        parent = self._parents.get(host, _ROOT)
        return None if parent == _ROOT else parent

    def remove(self, host: int) -> list[int]:
        """Forget a host; return those that have another place now."""
        parent = self._parents.pop(host, None)
        if parent is None:
            return []
        orphans = sorted(self._children.pop(host))
        self._leave(host, parent)
        for each in orphans:
            del self._parents[each]
        for each in orphans:
            self._put(each, self._place_for(each))
        return orphans

    def move(self, host: int) -> None:
        """Give a host a place under another one, if there is any: its own is no good."""
        old = self._parents.pop(host)
        self._leave(host, old)
        self._put(host, self._place_for(host, but=old))

    def above(self, host: int) -> Iterator[int]:
        """Iterate over the hosts between this one and the controller, the next one first."""
        while (parent := self.parent_of(host)) is not None:
            yield parent
            host = parent

    def _place_for(self, host: int, but: int | None = None) -> int:
        # the nearest place with room that is not under the host itself
        unfit = []
        found = _ROOT if but is None else but
        while self._places:
            place = heapq.heappop(self._places)
            depth, children, _, parent = place
            if not self._is_true(depth, children, parent):
                continue
            if parent not in (but, host) and host not in self.above(parent):
                found = parent
                break
            unfit.append(place)
        for each in unfit:
            heapq.heappush(self._places, each)
        return found

    def _is_true(self, depth: int, children: int, host: int) -> bool:
        is_placed = host == _ROOT or host in self._parents
        return is_placed and len(self._children[host]) == children and self._depth(host) == depth

    def _put(self, host: int, parent: int) -> None:
        self._parents[host] = parent
        self._children[parent].add(host)
        self._offer(parent)
        self._offer_all(host)

    def _leave(self, host: int, parent: int) -> None:
        self._children[parent].discard(host)
        self._offer(parent)

    def _offer_all(self, host: int) -> None:
        # its depth is another one now, and that of all under it
        self._offer(host)
        for each in self._children[host]:
            self._offer_all(each)

    def _offer(self, host: int) -> None:
        children = len(self._children[host])
        if children < self._fan_out:
            place = (self._depth(host), children, next(self._order), host)
            heapq.heappush(self._places, place)

    def _depth(self, host: int) -> int:
        return 0 if host == _ROOT else 1 + sum(1 for _ in self.above(host))
