"""Random numbers of ranks: `torch.manual_seed` is for them too.

Rule: it seeds every device, PyTorch says; the ranks of a mesh are devices of the controller. Those
of each engine get the seed in turn with their commands; one that starts later gets the last. All
ranks of a mesh draw the same numbers, until a program seeds them apart.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Final

import torch

from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Engine

DEFAULT: Final = 67280421310721
"""PyTorch's own, of a generator that nobody has seeded."""

_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
_lock: Final = threading.Lock()


def follow(engine: Engine) -> None:
    """From now on this engine's ranks are seeded with the controller; as it is now, if it was."""
    with _lock:
        if engine in _engines:
            return
        _engines.add(engine)
        _install()
    if (number := torch.initial_seed()) != DEFAULT:
        _send(engine, number)


@functools.cache
def _install() -> None:
    # around what it is now: PyTorch's compiler puts something of its own around it
    original = torch.manual_seed

    @functools.wraps(original)
    def manual_seed(seed: int) -> torch.Generator:
        found = original(seed)
        for engine in list(_engines):
            if not engine.is_over():
                _send(engine, torch.initial_seed())
        return found

    torch.manual_seed = torch.random.manual_seed = manual_seed


def _send(engine: Engine, number: int) -> None:
    home = engine.home(engine.procs.shape)
    functions.run(_seed, (number,), inputs=[], home=home, held=None)


def _seed(number: int) -> None:
    torch.manual_seed(number)
