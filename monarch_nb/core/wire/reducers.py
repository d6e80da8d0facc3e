"""How tensors and tables are pickled: their memory out of band, as they lie there.

By themselves tensors and polars frames are copied into the pickle, and a part of a pyarrow table
takes the whole with it. A tensor on a GPU goes through main memory, to the GPU of the same number;
where there is none to the current GPU, and to main memory where there is no GPU at all.

Rules: nothing is imported for this (`known` looks at what is loaded); only exact types, and only
values whose copy is equal in every respect; all else goes the library's own way. What is built
again may share memory with the buffers, and is writable.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from monarch_nb.core.wire.frames import Buffer

Reducer = Callable[[Any], Any]

_WASTE: Final = 1.25  # a table takes memory along that is not its own: over this it is copied
_SPARSE_STRINGS: Final = 2.5  # the same for polars, whose strings take some 16 bytes each besides
_MOST_PINNED: Final = 1 << 28  # from a GPU 40 times as fast as new pages; PyTorch keeps such memory


def known(table: dict[type, Reducer]) -> None:
    """Add the reducers of libraries that are loaded by now. Quick where nothing new was loaded."""
    count = len(sys.modules)
    if count == _looked_at.count:
        return
    _looked_at.count = count
    for name, add in list(waiting.items()):
        module = sys.modules.get(name)
        if module is None:
            continue
        if getattr(module.__spec__, "_initializing", False):  # by another thread: look again
            _looked_at.count = 0
        elif waiting.pop(name, None):
            table.update(add(module))


class _LookedAt:
    count = 0


_looked_at: Final = _LookedAt()


def _of_torch(torch: ModuleType) -> dict[type, Reducer]:
    return {torch.Tensor: reduce_tensor}


def _of_pyarrow(pyarrow: ModuleType) -> dict[type, Reducer]:
    return {pyarrow.Table: _reduce_table, pyarrow.RecordBatch: _reduce_table}


def _of_polars(polars: ModuleType) -> dict[type, Reducer]:
    return {polars.DataFrame: _reduce_frame, polars.Series: _reduce_series}


waiting: Final = {"torch": _of_torch, "pyarrow": _of_pyarrow, "polars": _of_polars}


def reduce_tensor(tensor: Any) -> Any:
    """Return the function that builds it again, and what that takes: the number of a GPU last."""
    torch = sys.modules["torch"]
    if not _is_plain(torch, tensor):
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    own = tensor.detach()
    if span > _WASTE * own.numel():
        own, span = own.contiguous(), own.numel()
    flat = _in_main_memory(torch, own.as_strided((span,), (1,)).view(torch.uint8)).numpy()
    how = tensor.dtype, tuple(own.size()), own.stride(), tensor.requires_grad, tensor.device.index
    return _tensor, (pickle.PickleBuffer(flat), *how)


def _in_main_memory(torch: ModuleType, flat: Any) -> Any:
    if flat.device.type == "cpu":
        return flat
    if flat.nbytes > _MOST_PINNED:
        return flat.cpu()
    return torch.empty(flat.nbytes, dtype=torch.uint8, pin_memory=True).copy_(flat)


def _is_plain(torch: ModuleType, tensor: Any) -> bool:
    return (
        tensor.device.type in ("cpu", "cuda")
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
        and tensor._backward_hooks is None
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
    )


def _tensor(
    buffer: Buffer,
    dtype: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    has_grad: bool,
    gpu: int | None,
) -> Any:
    torch = importlib.import_module("torch")
    view = memoryview(buffer)
    flat = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    if gpu is not None and torch.cuda.is_available():
        flat = flat.to(f"cuda:{gpu}" if gpu < torch.cuda.device_count() else "cuda")
    elif flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    found = flat.view(dtype).as_strided(size, stride)
    return found.requires_grad_() if has_grad else found


def _reduce_table(table: Any) -> Any:
    # a part of a table without the rest, which pyarrow would send too
    if table.get_total_buffer_size() <= _WASTE * table.nbytes:
        return table.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    pyarrow = sys.modules["pyarrow"]
    ipc = importlib.import_module("pyarrow.ipc")
    sink = pyarrow.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return _table, (pickle.PickleBuffer(sink.getvalue()), isinstance(table, pyarrow.RecordBatch))


def _table(buffer: Buffer, is_batch: bool) -> Any:
    pyarrow, ipc = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
    stream = ipc.open_stream(pyarrow.py_buffer(buffer))
    return stream.read_next_batch() if is_batch else stream.read_all()


def _reduce_frame(frame: Any) -> Any:
    # through Arrow, whose memory polars shares; without pyarrow, as bytes of Arrow's format
    polars = sys.modules["polars"]
    try:
        table = _arrow(polars, frame)
        if table is not None:
            return _frame, (table,)
        stream = io.BytesIO()
        newest = polars.CompatLevel.newest()
        frame.write_ipc_stream(stream, compression="uncompressed", compat_level=newest)
        return _frame_of_bytes, (pickle.PickleBuffer(stream.getbuffer()),)
    except Exception:  # noqa: BLE001  columns of Python objects, and whatever else Arrow lacks
        return frame.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _arrow(polars: ModuleType, frame: Any) -> Any:
    # The same memory as an Arrow table; None where the frame is not that, or only a part of it
    if not _has_pyarrow():
        return None
    table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
    if table.get_total_buffer_size() > _SPARSE_STRINGS * frame.estimated_size():
        return None
    return table if polars.from_arrow(table).schema == frame.schema else None


@functools.cache
def _has_pyarrow() -> bool:
    try:
        importlib.import_module("pyarrow")
    except ImportError:
        return False
    return True


def _frame(table: Any) -> Any:
    return importlib.import_module("polars").from_arrow(table)


def _frame_of_bytes(buffer: Buffer) -> Any:
    if _has_pyarrow():
        return _frame(_table(buffer, False))
    return importlib.import_module("polars").read_ipc_stream(bytes(buffer))


def _reduce_series(series: Any) -> Any:
    return _series, (series.to_frame(),)


def _series(frame: Any) -> Any:
    return frame.to_series()
