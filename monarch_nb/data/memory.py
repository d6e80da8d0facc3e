"""What a user's tensor or memoryview is as memory: where it starts, how long it is, where it lies.

Rules: only what is one run of bytes is accepted, and what is not is refused with what to type
instead; whoever has a `Memory` keeps the bytes alive and in place (a tensor's storage cannot be
resized once its memory was given out).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "an RDMABuffer is one run of bytes"


class Memory(NamedTuple):
    """`size` bytes at `address`. `view`: of main memory; `tensor`: bytes on a GPU. One is None."""

    address: int
    size: int
    writable: bool
    view: memoryview | None
    tensor: Tensor | None


def memory_of(data: object, what: str = "data") -> Memory:
    """Return the memory of a 1-D contiguous `torch.Tensor` or `memoryview`.

    Raises `ValueError` for anything else; `what` names it in the text.
    """
    if isinstance(data, memoryview):
        return _of_view(data, what)
    torch = sys.modules.get("torch")  # which another thread may be loading
    tensor: Any = getattr(torch, "Tensor", ())
    if torch is not None and isinstance(data, tensor):
        return _of_tensor(torch, data, what)
    hint = "; type memoryview(array)" if hasattr(data, "__array_interface__") else ""
    raise ValueError(f"{what} must be a torch.Tensor or a memoryview, not {_kind(data)}{hint}")


def fill(memory: Memory, offset: int, data: memoryview) -> None:
    """Put bytes into main memory. Other threads go on meanwhile."""
    import numpy as np  # its copyto lets go of the GIL and takes read-only buffers

    assert memory.view is not None
    target = memory.view[offset : offset + len(data)]
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))


def _of_view(view: memoryview, what: str) -> Memory:
    if not view.c_contiguous:
        raise ValueError(f"{what} is not contiguous, and {_HINT}; copy it first: bytearray(view)")
    if view.ndim != 1:
        raise ValueError(f'{what} has {view.ndim} dimensions, and {_HINT}; type view.cast("B")')
    if not view.nbytes:
        return Memory(0, 0, not view.readonly, view, None)
    flat = view.cast("B")
    return Memory(_address(flat), flat.nbytes, not flat.readonly, flat, None)


def _of_tensor(torch: ModuleType, tensor: Tensor, what: str) -> Memory:
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError(
            f"{what} is not contiguous, and {_HINT}; "
            "type t.contiguous().view(torch.uint8).flatten()"
        )
    if tensor.dim() != 1:
        raise ValueError(
            f"{what} has {tensor.dim()} dimensions, and {_HINT}; type t.view(torch.uint8).flatten()"
        )
    if not tensor.numel():
        return Memory(0, 0, True, memoryview(b""), None)
    try:
        flat = tensor.detach().view(torch.uint8)
        if tensor.device.type == "cuda":
            return Memory(flat.data_ptr(), flat.numel(), True, None, flat)
        view = flat.numpy().data
    except (RuntimeError, TypeError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        local = "; type t.to_local()" if hasattr(tensor, "to_local") else ""
        raise ValueError(f"{what}, {_kind(tensor)}, has no memory here: {why}{local}") from error
    return Memory(flat.data_ptr(), flat.numel(), True, view, None)


def _address(flat: memoryview) -> int:
    import numpy as np  # takes read-only memory too, where ctypes does not

    return int(np.frombuffer(flat, np.uint8).ctypes.data)


def _kind(data: object) -> str:
    device = getattr(data, "device", None)
    where = f" on {device}" if device is not None else ""
    return f"{type(data).__name__}{where}"
