"""`torch.manual_seed` reaches ranks: it seeds every device, and ranks are those of the controller.

Rule: ranks are seeded by a program alone. Where none has, each draws numbers of its own.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from typing import Final

import torch

from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Engine

_engines: Final[weakref.WeakSet[Engine]] = weakref.WeakSet()
_lock: Final = threading.Lock()
_SEEDS: Final = 1 << 64
"""As many; negative ones count from there."""


def follow(engine: Engine) -> None:
    """Seed this engine's ranks with the controller from now on; as it is now, if it was seeded.

    They get the seed in turn with their commands, and draw the same numbers till a program seeds
    them apart.
    """
    with _lock:
        if engine in _engines or engine.is_over():  # or there are none, as in a simulation
            return
        _engines.add(engine)
        _install()
    if _was_seeded():
        _send(engine, torch.initial_seed())


def _was_seeded() -> bool:
    # The generator of CPUs does not tell: it begins with a number of its own in each process. But
    # who seeds has seeded GPUs with the same number, or has it noted for when CUDA starts.
    if torch.cuda.is_initialized():
        return torch.cuda.initial_seed() == torch.initial_seed()
    noted = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
    if noted is None:
        return False
    seed: int = inspect.getclosurevars(noted[0]).nonlocals["seed"]
    return seed % _SEEDS == torch.initial_seed()


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
    functions.run(_seed, (number,), inputs=[], home=home, mesh=None)


def _seed(number: int) -> None:
    torch.manual_seed(number)
