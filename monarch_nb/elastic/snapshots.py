"""Snapshots: what a state was before a step, in the memory of the process, and in that of another
one if no rank but this has it.

Rules: a snapshot is copied between two steps, and goes to its keeper while the next ones run. Two
are kept of each rank: while one is on its way, the one before is whole. It is there before ranks
agree to take the step behind which the next one is copied; so all have one that is there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

from monarch_nb.core.elastic.record import KEPT_SNAPSHOTS
from monarch_nb.core.wire.messages.elastic import Kept, Member
from monarch_nb.elastic import moving
from monarch_nb.elastic.contents import Packed
from monarch_nb.elastic.undo import Before
from monarch_nb.process.futures.future import Future

_LOST: Final = (RuntimeError, OSError, TimeoutError)


class Snapshot(NamedTuple):
    """A copy of what this rank has before a step, and where that step began."""

    copy: Packed
    before: Before


class Snapshots:
    """Keeps the last snapshots of this rank, by step."""

    def __init__(self) -> None:
        self._found: dict[int, Snapshot] = {}

    def add(self, step: int, snapshot: Snapshot) -> None:
        self._found[step] = snapshot
        for old in sorted(self._found)[:-KEPT_SNAPSHOTS]:
            del self._found[old]

    def of(self, step: int) -> Snapshot:
        return self._found[step]

    @property
    def steps(self) -> list[int]:
        return sorted(self._found)

    def forget(self) -> None:
        self._found.clear()

    def forget_after(self, step: int) -> None:
        """Forget those of steps that are run again."""
        self._found = {each: found for each, found in self._found.items() if each <= step}


class Sending:
    """The way of snapshots to a keeper, one at a time."""

    def __init__(self, keeper: int, tag: int, limit_s: float) -> None:
        self._keeper = keeper
        self._tag = tag
        self._limit_s = limit_s
        self._under_way: list[Future[None]] = []

    def begin(self, found: Packed) -> None:
        """Begin to send one, where the one before is there."""
        with contextlib.suppress(*_LOST):
            self._under_way = moving.begin_to_send(found, self._keeper, self._tag, self._limit_s)

    def wait(self) -> None:
        """Wait until it is there, or the keeper is lost, of which the loop hears otherwise. Raises
        `TimeoutError`."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            try:
                each.get()
            except TimeoutError:
                raise
            except _LOST:
                return

    def end(self) -> None:
        """Send no more. Waits for nothing."""
        with contextlib.suppress(*_LOST):
            moving.send_end(self._keeper, self._tag)


class Keeping:
    """Snapshots of other ranks."""

    def __init__(self) -> None:
        self._found: dict[Kept, Packed] = {}
        self._lock = threading.Lock()
        self._round = 0

    def begin(self, wards: Sequence[Member], tag: int) -> None:
        """Keep what comes from these from now on, and no more from others; what is there stays."""
        with self._lock:
            self._round += 1
        for ward in wards:
            receiving = threading.Thread(
                target=self._receive,
                args=(ward, tag, self._round),
                name="monarch-snapshots",
                daemon=True,
            )
            receiving.start()

    def end(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._round += 1
            self._found.clear()

    def forget_after(self, step: int) -> None:
        """Forget those of steps that are run again."""
        with self._lock:
            self._found = {kept: each for kept, each in self._found.items() if kept.step <= step}

    def all(self) -> list[Kept]:
        with self._lock:
            return sorted(self._found)

    def of(self, kept: Kept) -> Packed:
        with self._lock:
            return self._found[kept]

    def _receive(self, ward: Member, tag: int, number: int) -> None:
        while self._round == number:
            try:
                found = moving.receive_copy(ward.process, tag)
            except TimeoutError:
                continue
            except _LOST:
                return
            if found is None:
                return
            self._keep(ward.rank, found, number)

    def _keep(self, rank: int, found: Packed, number: int) -> None:
        with self._lock:
            if self._round != number:
                return
            self._found[Kept(rank, found.description.step)] = found
            mine = sorted(each for each in self._found if each.rank == rank)
            for old in mine[:-KEPT_SNAPSHOTS]:
                del self._found[old]
