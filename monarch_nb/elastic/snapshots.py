"""Snapshots: what a state was before a step, in the memory of the process, and in that of another
one if no rank but this has it.

Rules: a snapshot is copied between two steps, and goes to its keeper while the next ones run. Two
are kept of each rank: while one is on its way, the one before is whole.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import torch

from monarch_nb.core.wire.messages.elastic import Kept, Member
from monarch_nb.elastic import moving
from monarch_nb.elastic.contents import Contents, Description
from monarch_nb.elastic.undo import Before

KEPT: Final = 2
_LOST: Final = (RuntimeError, OSError, TimeoutError)


class Snapshot(NamedTuple):
    """Of this rank."""

    contents: Contents
    before: Before


class Snapshots:
    """Of this rank, by step; the last two."""

    def __init__(self) -> None:
        self._found: dict[int, Snapshot] = {}

    def add(self, step: int, snapshot: Snapshot) -> None:
        self._found[step] = snapshot
        for old in sorted(self._found)[:-KEPT]:
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
    """The way of snapshots to a keeper, one at a time; of those that wait only the last goes."""

    def __init__(self, keeper: int, tag: int) -> None:
        self._keeper = keeper
        self._tag = tag
        self._due: queue.Queue[Contents | None] = queue.Queue()
        threading.Thread(target=self._run, name="monarch-snapshots", daemon=True).start()

    def send(self, found: Contents) -> None:
        """Send one; wait until it is there. The loop hears otherwise of a keeper that is lost."""
        with contextlib.suppress(*_LOST):
            moving.send(found, self._keeper, self._tag)

    def send_soon(self, found: Contents) -> None:
        """Send one when those before have gone. Waits for nothing."""
        self._due.put(found)

    def end(self) -> None:
        """Send no more. Waits for nothing."""
        self._due.put(None)

    def _run(self) -> None:
        while (found := self._last()) is not None:
            self.send(found)

    def _last(self) -> Contents | None:
        found = self._due.get()
        while found is not None and not self._due.empty():
            found = self._due.get()
        return found


class Keeping:
    """Snapshots of other ranks."""

    def __init__(self) -> None:
        self._found: dict[Kept, Contents] = {}
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

    def of(self, kept: Kept) -> Contents:
        with self._lock:
            return self._found[kept]

    def _receive(self, ward: Member, tag: int, number: int) -> None:
        while self._round == number:
            tensors: list[torch.Tensor] = []
            try:
                description = moving.receive(ward.process, partial(_prepare, tensors), tag)
            except TimeoutError:
                continue
            except _LOST:
                return
            self._keep(ward.rank, Contents(description, tensors), number)

    def _keep(self, rank: int, found: Contents, number: int) -> None:
        with self._lock:
            if self._round != number:
                return
            self._found[Kept(rank, found.description.step)] = found
            mine = sorted(each for each in self._found if each.rank == rank)
            for old in mine[:-KEPT]:
                del self._found[old]


def _prepare(tensors: list[torch.Tensor], description: Description) -> list[torch.Tensor]:
    tensors += [each.empty() for each in description.tensors]
    return tensors
