"""What simulated ranks were told to do, in order, and the memory that it takes there.

Rule: views share the memory of what they are views of; it is free when the controller has let go of
all of them, as on ranks. What operations need while they run, and what is lost between blocks, is
not counted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from monarch_nb.tensor.commands.call_sites import CallSite
from monarch_nb.tensor.commands.metadata import TensorMeta


class Command(NamedTuple):
    """A command to simulated ranks.

    Attributes:
        name: the operation of torch, or the function.
        ranks: who runs it, all in the same way.
        stream: in the order of which stream.
        makes: the kinds of the tensors that it makes, as "float32[3, 4]".
        sends: about how many bytes each of the ranks sends to others.
        memory: the bytes of tensors on the fullest of the ranks, with what it makes.
        site: the line that issued it.
    """

    name: str
    ranks: tuple[int, ...]
    stream: str
    makes: tuple[str, ...]
    sends: int
    memory: int
    site: CallSite


class Memory(NamedTuple):
    """The bytes of tensors on a rank: now, and at most so far."""

    now: int
    peak: int


class _Storage:
    def __init__(self, ranks: Sequence[int], size: int) -> None:
        self.ranks = ranks
        self.size = size
        self.holders = 0


class Ledger:
    """All streams of a simulated mesh of `size` ranks."""

    def __init__(self, size: int) -> None:
        self.commands: list[Command] = []
        self.metas: dict[int, TensorMeta] = {}
        """Kinds of the tensors that there are, by ref."""
        self._storages: dict[int, _Storage] = {}
        self._now = [0] * size
        self._peak = [0] * size
        self.lock = threading.RLock()

    @property
    def memory(self) -> list[Memory]:
        """By rank."""
        return [Memory(*each) for each in zip(self._now, self._peak, strict=True)]

    def add(
        self,
        name: str,
        ranks: Sequence[int],
        stream: str,
        made: Sequence[tuple[int, TensorMeta]],
        shared: int | None,
        sends: int,
        site: CallSite,
    ) -> None:
        """Note a command. `made`: refs and kinds; `shared`: whose memory these are views of, 0 for
        that of another stream; None where they have their own."""
        for ref, meta in made:
            self.metas[ref] = meta
            known = None if shared is None else self._storages.get(shared)
            size = meta.nbytes if shared is None else 0
            storage = self._storages[ref] = known or _Storage(ranks, size)
            if not storage.holders:
                self._take(storage)
            storage.holders += 1
        memory = max((self._now[rank] for rank in ranks), default=0)
        kinds = tuple(meta.words() for _, meta in made)
        self.commands.append(Command(name, tuple(ranks), stream, kinds, sends, memory, site))

    def free(self, ref: int) -> None:
        """Note that the controller has let go of a tensor."""
        self.metas.pop(ref, None)
        storage = self._storages.pop(ref, None)
        if storage is None:  # of a function that returns no tensor
            return
        storage.holders -= 1
        if not storage.holders:
            for rank in storage.ranks:
                self._now[rank] -= storage.size

    def _take(self, storage: _Storage) -> None:
        for rank in storage.ranks:
            self._now[rank] += storage.size
            self._peak[rank] = max(self._peak[rank], self._now[rank])
