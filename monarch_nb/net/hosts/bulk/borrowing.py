"""What processes of this host lend to processes of others, mapped by the gateway while it is on its
way.

So it is encrypted out of the memory where its sender has put it. The views are what the message is
made of from here on; when the last one is gone, because all has arrived or is given up, the sender
is told, in the name of the receivers.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from monarch_nb.core.casting import Run
from monarch_nb.core.wire.frames import Buffer
from monarch_nb.core.wire.leases import Shared
from monarch_nb.core.wire.messages.actors import Release
from monarch_nb.errors import BrokenError, RemoteProtocolError
from monarch_nb.net.local import Lender
from monarch_nb.net.loop import Loop

Holders = list[tuple[int, int]]
_NOBODY_MAPS: Final = "shared memory came where nobody maps it"


class Borrowing:
    """`tell(process, release)` tells who has lent something, in the loop's thread."""

    def __init__(
        self, lender: Lender | None, loop: Loop, tell: Callable[[int, Release], None]
    ) -> None:
        self._lender = lender
        self._loop = loop
        self._tell = tell
        self._freed: deque[tuple[int, int, Holders]] = deque()

    def lender_of(self, bodies: Sequence[Buffer]) -> int | None:
        """Return who has lent what is in a message, if anybody has. Raises
        `RemoteProtocolError`."""
        found = Shared.of(bodies)
        return None if found is None else found.source

    def take_up(self, bodies: Sequence[Buffer], runs: Sequence[Run]) -> Sequence[Buffer]:
        """Return a message to these processes of other hosts with what was lent to them in its
        place. Any thread. Raises `RemoteProtocolError`, and then nobody holds it any more."""
        message = Shared.of(bodies)
        if message is None:
            return bodies
        if self._lender is None:
            raise RemoteProtocolError(_NOBODY_MAPS)
        holders = [(run.process, run.size) for run in runs]
        views = []
        for handle in message.placed:
            if handle is not None:
                freed = functools.partial(self._free, message.source, handle.segment, holders)
                try:
                    views.append(self._lender.borrow(handle, freed))
                except BrokenError as error:
                    raise RemoteProtocolError(f"what was lent is gone: {error}") from error
        return message.taken_up(views)

    def _free(self, owner: int, segment: int, holders: Holders) -> None:
        # by whoever drops the last view, even inside an allocation: it only queues
        self._freed.append((owner, segment, holders))
        self._loop.soon(self._give_back)

    def _give_back(self) -> None:
        while self._freed:
            owner, segment, holders = self._freed.popleft()
            self._tell(owner, Release(segment, holders))
