"""The batches of a loader, one for each step: none is skipped, and none comes twice.

Where a loader stands is its epoch, the number of the batch, and the generators as they were when
the epoch began: a new process makes the same order of samples of it, and goes to the same place
without loading what comes before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from monarch_nb.elastic.randomness import Randomness


class Place(NamedTuple):
    """Where a loader stands: `began` are the generators when the epoch began; None: it has not."""

    epoch: int
    batch: int
    began: Randomness | None


class Batches:
    """Of one loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self._place = Place(0, 0, None)
        self._iterator: Iterator[Any] | None = None
        self._current: tuple[Any, Randomness] | None = None  # of this step, once it was asked for
        self._was_asked = False  # since the step was begun
        self._next = self._place

    @property
    def next_place(self) -> Place:
        """Where it stands when the step counts."""
        return self._next

    def get(self) -> Any:
        """Return the batch of this step: the same one, however often the step is begun."""
        if self._current is None:
            self._current = self._load(), Randomness.now()
        elif not self._was_asked:  # loading may have drawn numbers
            self._current[1].restore()
        self._was_asked = True
        return self._current[0]

    def _load(self) -> Any:
        while True:
            epoch, number, began = self._place
            if self._iterator is None:
                began = Randomness.now() if began is None else began
                self._iterator = _at(self.loader, epoch, number, began)
            try:
                batch = next(self._iterator)
            except StopIteration:
                if number == 0:
                    raise RuntimeError("the loader has no batch") from None
                self._iterator, self._place = None, Place(epoch + 1, 0, None)
                continue
            self._next = Place(epoch, number + 1, began)
            return batch

    def count(self) -> None:
        """The step counts: go on to the next batch, if this one was asked for."""
        self._place, self._current, self._was_asked = self._next, None, False

    def again(self) -> None:
        """The step is begun again."""
        self._was_asked = False

    def go_to(self, place: Place) -> None:
        """Stand there, in whatever process."""
        self._place = self._next = place
        self._iterator = self._current = None
        self._was_asked = False


def _at(loader: DataLoader[Any], epoch: int, number: int, began: Randomness) -> Iterator[Any]:
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    now = Randomness.now()
    began.restore()
    iterator = iter(loader)
    if number:
        _skip(iterator, number)
        now.restore()
    return iterator


def _skip(iterator: Any, count: int) -> None:
    if type(iterator).__name__ == "_SingleProcessDataLoaderIter":
        for _ in range(count):  # the samples are chosen, and not loaded
            iterator._next_index()
        iterator._num_yielded += count
        return
    for _ in range(count):
        next(iterator)
