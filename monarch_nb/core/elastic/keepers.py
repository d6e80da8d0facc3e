"""Who keeps the snapshots of whom, in a loop whose ranks do not all have the same. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def keepers(parts: Mapping[int, int], hosts: Mapping[int, int]) -> dict[int, int]:
    """Return, for each rank that has a part which no other has, the rank that keeps its snapshots:
    one of the next host, so that a host may be lost, or of its own if there is no other. Each rank
    keeps as many as others do.

    Example:
        >>> keepers({0: 7, 1: 8, 2: 9, 3: 9}, {0: 1, 1: 1, 2: 2, 3: 2})
        {0: 2, 1: 3}
    """
    if len(parts) == 1:
        return {}
    by_host: dict[int, list[int]] = {}
    for rank in sorted(parts):
        by_host.setdefault(hosts[rank], []).append(rank)
    counts = Counter(parts.values())
    found = _beside(sorted(parts)) if len(by_host) == 1 else _across(list(by_host.values()))
    return {rank: keeper for rank, keeper in found.items() if counts[parts[rank]] == 1}


def _beside(ranks: list[int]) -> dict[int, int]:
    return dict(zip(ranks, ranks[1:] + ranks[:1], strict=True))


def _across(hosts: list[list[int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for here, there in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        found |= {rank: there[place % len(there)] for place, rank in enumerate(here)}
    return found
