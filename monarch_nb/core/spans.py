"""Spans of time, told by several who do not share a clock: as seconds ago, from and to."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def covered_s(spans: Iterable[Span], within_s: float) -> float:
    """How many of the last `within_s` seconds are in any of the spans.

    Example:
        >>> covered_s([(10.0, 6.0), (7.0, 5.0), (2.0, 0.0)], within_s=9.0)
        6.0
    """
    total, until = 0.0, float("inf")  # walked from long ago to now
    for start, end in sorted(spans, reverse=True):
        start = min(start, within_s, until)  # noqa: PLW2901  what is older or counted already
        end = max(end, 0.0)  # noqa: PLW2901
        if start > end:
            total += start - end
            until = end
    return total
