"""What the controller knows of a tensor on the ranks: shape, strides, dtype, device; no values.

Rule: what an operation makes of its inputs is asked of PyTorch's fake tensors, so nothing is
allocated and nothing computed here. Equal kinds are one object.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import _disable_current_modes

R = TypeVar("R")
_LIMIT: Final = 50_000


class TensorMeta:
    """The kind of a tensor. Equal ones are one object, so they are compared and hashed at once."""

    __slots__ = ("device", "dtype", "offset", "sizes", "strides")

    def __init__(
        self,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        offset: int,
    ) -> None:
        self.sizes = sizes
        self.strides = strides
        self.dtype = dtype
        self.device = device
        self.offset = offset

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements, each counted once."""
        return math.prod(self.sizes) * self.dtype.itemsize

    def words(self) -> str:
        """Write it for people: `float32[3, 4]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.sizes)}"


_metas: dict[tuple[object, ...], TensorMeta] = {}


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """Return the kind of a local or a fake tensor. `NotImplementedError` for one that is sparse."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout} on a mesh; use it inside a remote() function"
        )
    device = torch.device(tensor.device.type)  # each rank has its own of a kind
    key = (tuple(tensor.shape), tensor.stride(), tensor.dtype, device, int(tensor.storage_offset()))
    found = _metas.get(key)
    if found is None:
        if len(_metas) > _LIMIT:
            _metas.clear()
        found = _metas.setdefault(key, TensorMeta(*key))
    return found


@functools.cache
def fake_mode() -> FakeTensorMode:
    """Return the mode in which tensors without values are made. Made at its first use, on the
    controller: PyTorch loads its compiler for it, seconds that ranks need not wait."""
    return FakeTensorMode(allow_non_fake_inputs=False)


def fake_of(meta: TensorMeta) -> torch.Tensor:
    with _disable_current_modes(), fake_mode():
        whole = torch.empty_strided(meta.sizes, meta.strides, dtype=meta.dtype, device=meta.device)
        if meta.offset:
            whole = whole.as_strided(meta.sizes, meta.strides, meta.offset)
        return whole


class _Quiet(threading.local):
    """While it is set, PyTorch does not log what it raises: the user is told by the error."""

    on = False

    def filter(self, _: logging.LogRecord) -> bool:
        return not self.on


_quieting: Final = _Quiet()
logging.getLogger("torch._subclasses.fake_tensor").addFilter(_quieting)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    _quieting.on = True
    try:
        yield
    finally:
        _quieting.on = False


def propagate(
    function: Callable[..., R], args: Sequence[object], kwargs: Mapping[str, object], name: str
) -> R:
    """Return what `function` makes of fake tensors.

    Raises what it raises: a shape that does not fit is known here, at the line that did it. Where
    the result depends on values, which only the ranks have: `RuntimeError` with the way out.
    """
    try:
        with _disable_current_modes(), fake_mode(), _quiet():
            return function(*args, **kwargs)
    except DataDependentOutputException:
        raise RuntimeError(
            f"{name} needs the values of a tensor that is on the ranks. Bring one rank's home: "
            "fetch_shard(t).get(), or inspect(t, gpus=0)"
        ) from None
    except DynamicOutputShapeException:
        raise RuntimeError(
            f"the shape of what {name} returns depends on values, and may differ between ranks. "
            "Use it inside a remote() function, or fetch the tensor first"
        ) from None
