"""Memory on GPUs: shared between the processes of a host by CUDA IPC, copied to and from main
memory through pinned pages.

Rules: torch is only looked at where it is loaded; a process opens what another one shares once and
keeps it; what was copied is there when a function returns (the stream is waited for). The owner's
own kernels are not: as with RDMA, it synchronises before it tells others that the data is ready.
"""

from __future__ import annotations

import collections
import importlib
import threading
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.data.memory import Memory
from monarch_nb.data.registry import Place

if TYPE_CHECKING:
    from torch import Tensor

_KEPT: Final = 64  # opened buffers of others; opening takes a millisecond, each holds address space
_opened: collections.OrderedDict[Place, Tensor] = collections.OrderedDict()
_lock = threading.Lock()


def share(memory: Memory) -> tuple[Any, ...] | None:
    """Return what another process needs to `open_shared` memory on a GPU; None for main memory."""
    if memory.tensor is None:
        return None
    storage: Any = memory.tensor.untyped_storage()  # the call is not typed
    return (*storage._share_cuda_(), int(memory.tensor.storage_offset()), memory.size)


def open_shared(place: Place, shared: tuple[Any, ...]) -> Tensor:
    """Return the bytes of another process as a tensor on their GPU."""
    with _lock:
        if place in _opened:
            _opened.move_to_end(place)
            return _opened[place]
        torch = importlib.import_module("torch")
        *storage, offset, size = shared
        torch.cuda._lazy_init()
        opened = torch.UntypedStorage._new_shared_cuda(*storage)
        flat = torch.empty(0, dtype=torch.uint8, device=opened.device)
        _opened[place] = flat.set_(opened, offset, (size,))
        while len(_opened) > _KEPT:
            _opened.popitem(last=False)
        return _opened[place]


def forget(place: Place) -> None:
    """Let go of what was opened of a buffer that is gone."""
    with _lock:
        _opened.pop(place, None)


def copy(target: Memory | Tensor, source: Memory | Tensor) -> None:
    """Copy bytes between two memories of which one or both are on a GPU; both of one size."""
    to, origin = (_tensor(each) for each in (target, source))
    to.copy_(origin)
    torch = importlib.import_module("torch")
    for each in (to, origin):
        if each.device.type == "cuda":
            torch.cuda.current_stream(each.device).synchronize()


def part(memory: Memory | Tensor, start: int, size: int) -> Tensor:
    """Return bytes [start, start + size) as a tensor; `memory` may be a tensor of bytes."""
    return _tensor(memory)[start : start + size]


def staging(size: int) -> Memory:
    """Pinned main memory on the way between a GPU and what cannot reach it."""
    torch = importlib.import_module("torch")
    flat = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return Memory(flat.data_ptr(), size, True, memoryview(flat.numpy()), None)


def _tensor(memory: Memory | Tensor) -> Tensor:
    if not isinstance(memory, Memory):
        return memory
    if memory.tensor is not None:
        return memory.tensor
    torch = importlib.import_module("torch")
    import numpy as np

    assert memory.view is not None
    array = np.frombuffer(memory.view, np.uint8)
    found: Tensor = torch.from_numpy(array if memory.writable else array.copy())
    return found
