"""Memory of this host in which large values from other hosts lie, lent to the ranks they are for.

So such a value is written once for all ranks of the host. Made when the first one comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from monarch_nb.core.wire.leases import Handle
from monarch_nb.data.shared import Arena


class Lending:
    """Lends memory for the gateway, as its `Lender`. `limit_bytes`: of all together;
    `threshold_bytes`: smaller buffers travel in their messages."""

    def __init__(self, limit_bytes: int, threshold_bytes: int) -> None:
        self.threshold_bytes = threshold_bytes
        self._limit_bytes = limit_bytes
        self._arena: Arena | None = None

    def lend(self, buffers: Sequence[memoryview], holders: Sequence[int]) -> list[Handle]:
        """Lend these buffers to processes of this host. Raises `LimitError` where there is no
        room."""
        if self._arena is None:
            self._arena = Arena(self._limit_bytes)
        return self._arena.lend(buffers, holders)

    def release(self, segment: int, holder: int) -> None:
        """Take back what one process held."""
        if self._arena is not None:
            self._arena.release(segment, holder)

    def forget(self, holder: int) -> None:
        """Take back all that a process held, which has ended."""
        if self._arena is not None:
            self._arena.forget(holder)

    def close(self) -> None:
        """Let go of all: the ranks have gone."""
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.close()
