"""What a tensor or an array has in it: least, greatest, mean, what is no finite number.

Rules: only for what somebody has asked for by name. It goes through in pieces, so that memory for
one is enough; a GPU does it on a stream of its own, beside what the rank computes there. Of a
tensor that is spread over ranks only the part here is looked at: more would be a collective.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Final

PIECE: Final = 4 << 20  # elements
LIMIT_S: Final = 2.0


class Summary:
    """Of all pieces that were added."""

    def __init__(self) -> None:
        self._least, self._greatest, self._sum = math.inf, -math.inf, 0.0
        self._finite = self._nans = self._infinite = 0

    def add(self, library: ModuleType, piece: Any, wide: Callable[[Any], Any]) -> None:
        """Add a piece of a tensor (`library` is torch) or an array (numpy); `wide`: as float64."""
        size = math.prod(piece.shape)
        if not size:
            return
        finite = library.isfinite(piece)
        wide_piece = wide(piece)
        self._least = min(self._least, float(library.where(finite, wide_piece, math.inf).min()))
        self._greatest = max(
            self._greatest, float(library.where(finite, wide_piece, -math.inf).max())
        )
        self._sum += float(library.where(finite, wide_piece, 0.0).sum())
        found, nans = int(finite.sum()), int(library.isnan(piece).sum())
        self._finite += found
        self._nans += nans
        self._infinite += size - found - nans

    def __str__(self) -> str:
        parts = []
        if self._finite:
            mean = self._sum / self._finite
            parts += [f"{self._least:.4g} to {self._greatest:.4g}", f"mean {mean:.4g}"]
        parts += [f"{self._nans:,} NaN"] * bool(self._nans)
        parts += [f"{self._infinite:,} infinite"] * bool(self._infinite)
        return ", ".join(parts) or "empty"


def of_arrays(numpy: ModuleType, arrays: Iterable[Any]) -> str | None:
    """Summarize arrays of numpy; None for what has no order: complex, text, objects."""
    summary = Summary()
    until = time.monotonic() + LIMIT_S
    for array in arrays:
        if array.dtype.kind not in "fiub":
            return None
        if not _add(summary, numpy, array, lambda part: part.astype(numpy.float64), until):
            return f"not gone through in {LIMIT_S:.0f} s"
    return str(summary)


def of_tensors(torch: Any, tensors: Iterable[Any]) -> str | None:
    """Summarize tensors together; None for what has no order or no memory here."""
    summary = Summary()
    until = time.monotonic() + LIMIT_S
    is_part = False
    for tensor in tensors:
        local = local_part(torch, tensor)
        if local is None:
            return None
        is_part |= local is not tensor
        with torch.no_grad(), own_stream(torch, local):
            if not _add(summary, torch, local, lambda part: part.double(), until):
                return f"not gone through in {LIMIT_S:.0f} s"
    return f"part here: {summary}" if is_part else str(summary)


def local_part(torch: Any, tensor: Any) -> Any:
    """Return the tensor, or the part of it that is here; None where it has no numbers in a row."""
    # A subclass may do anything when it is asked for its least element: DTensor, a collective
    kind = type(tensor)
    if kind.__module__.startswith("torch.distributed.tensor"):
        tensor = getattr(tensor, "_local_tensor", None)
        kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return None
    is_plain = tensor.layout is torch.strided and not (tensor.is_complex() or tensor.is_quantized)
    return tensor if is_plain and tensor.device.type != "meta" else None


def own_stream(torch: Any, tensor: Any) -> contextlib.AbstractContextManager[Any]:
    """Have what is done with it be done beside what the rank computes."""
    if tensor.device.type != "cuda":
        return contextlib.nullcontext()
    stream: contextlib.AbstractContextManager[Any]
    stream = torch.cuda.stream(torch.cuda.Stream(tensor.device))
    return stream


def _add(
    summary: Summary, library: ModuleType, array: Any, wide: Callable[[Any], Any], until: float
) -> bool:
    # In pieces along the first axis; whether there was time for all
    if array.ndim == 0:
        array = array.reshape(1)
    rows = max(1, PIECE // max(1, math.prod(array.shape[1:])))
    for start in range(0, array.shape[0], rows):
        if time.monotonic() > until:
            return False
        summary.add(library, array[start : start + rows], wide)
    return True
