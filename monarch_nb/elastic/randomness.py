"""The random number generators of a process, as they stand."""

from __future__ import annotations

import random
import sys
from typing import Any, NamedTuple

import torch


class Randomness(NamedTuple):
    """Of PyTorch on the CPU and on each GPU in use, of Python, and of NumPy if it is loaded. Equal
    if they will give the same numbers."""

    cpu: bytes
    gpus: list[bytes]
    python: object
    numpy: object

    @staticmethod
    def now() -> Randomness:
        has_gpu = torch.cuda.is_initialized()
        gpus = torch.cuda.get_rng_state_all() if has_gpu else []
        return Randomness(
            _bytes(torch.get_rng_state()), list(map(_bytes, gpus)), random.getstate(), _of_numpy()
        )

    def restore(self) -> None:
        torch.set_rng_state(_tensor(self.cpu))
        if self.gpus:
            torch.cuda.set_rng_state_all(list(map(_tensor, self.gpus)))
        random.setstate(self.python)  # type: ignore[arg-type]  # what getstate gave
        numpy: Any = sys.modules.get("numpy")
        if self.numpy is not None and numpy is not None:
            of_numpy: Any = self.numpy
            kind, keys, *rest = of_numpy
            numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


def _of_numpy() -> object:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    kind, keys, *rest = numpy.random.get_state()
    return kind, keys.tobytes(), *rest


def _bytes(state: torch.Tensor) -> bytes:
    found: bytes = state.numpy().tobytes()
    return found


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
