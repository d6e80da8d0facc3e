"""GPUs in a simulation, on a machine that has none: their tensors are simulated as those of a CPU.

Rule: it looks at calls before PyTorch does, which would start CUDA for them. Sizes, and so memory,
are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

_CPU: Final = torch.device("cpu")


class WithoutGpus(TorchFunctionMode):
    """While it is entered, "cuda" means the CPU."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return torch.Tensor.to(args[0], _CPU)
        if func is torch.Tensor.to:
            args = [_CPU if _is_gpu(each) else each for each in args]
        device = named.get("device")
        # the default device may be a GPU, and PyTorch would start CUDA to tell which
        if _is_gpu(device) or (device is None and func in _device_constructors()):
            named["device"] = _CPU
        return func(*args, **named)


def _is_gpu(value: object) -> bool:
    return isinstance(value, str | torch.device) and torch.device(value).type == "cuda"
