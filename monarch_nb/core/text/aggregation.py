"""Similar lines of several ranks, counted: what `logging_option(aggregate_window_sec=...)` shows.

Lines are similar when they differ in numbers only. Different lines of one rank are never put
together, so the steps of a training stay apart: the second line of its kind goes with the second
of the other ranks.
"""

from __future__ import annotations

import re
from typing import Final

from monarch_nb.core.text.lines import LineAssembler

MAX_GROUPS: Final = 2_000
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class SimilarLines:
    """Collects the text of ranks until it is taken.

    Example:
        >>> lines = SimilarLines()
        >>> for rank in (0, 1):
        ...     lines.feed(rank, f"rank {rank}: step 1\\nrank {rank}: step 2\\n")
        >>> lines.take()
        [(2, 'rank 0: step 1'), (2, 'rank 0: step 2')]
    """

    def __init__(self) -> None:
        self._assemblers: dict[int, LineAssembler] = {}
        self._places: dict[tuple[int, str], dict[str, int]] = {}
        self._firsts: dict[tuple[str, int], str] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._left_out = 0

    def feed(self, rank: int, text: str) -> None:
        """A chunk of a rank's output."""
        for line in self._assemblers.setdefault(rank, LineAssembler()).feed(text):
            self._add(rank, line)

    def take(self) -> list[tuple[int, str]]:
        """How many and the first of them, in the order in which they came; then forget them."""
        found = [(self._counts[key], first) for key, first in self._firsts.items()]
        if self._left_out:
            found.append((self._left_out, "... more lines of other kinds"))
        self._places, self._firsts, self._counts, self._left_out = {}, {}, {}, 0
        return found

    def finish(self) -> None:
        """No more text comes: what has no end yet counts as a line."""
        for rank, assembler in self._assemblers.items():
            if assembler:
                self._add(rank, assembler.take())

    def _add(self, rank: int, line: str) -> None:
        kind = _NUMBER.sub("#", line)
        places = self._places.setdefault((rank, kind), {})
        key = kind, places.setdefault(line, len(places))
        if key not in self._firsts and len(self._firsts) >= MAX_GROUPS:
            self._left_out += 1
            return
        self._firsts.setdefault(key, line)
        self._counts[key] = self._counts.get(key, 0) + 1
