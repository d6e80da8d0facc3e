"""What somebody sees who opens a tensor of this rank: a window of its numbers, or a picture.

Rules: what leaves the rank is what is shown, never the tensor: a GPU cuts it out, or makes the
means of a picture, before it is copied. No code of the user's runs, so only tensors and arrays of
types that are exactly PyTorch's and NumPy's are shown. Of a tensor that is spread over ranks it is
the part here. What cannot be shown is refused in a sentence.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.status import (
    GetPicture,
    GetWindow,
    LocalTensor,
    Picture,
    Window,
)
from monarch_nb.worker.status import contents, described

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 50
MAX_DOTS: Final = 256  # across, and down
NAN_DOT: Final = 255
PIECE: Final = 4 << 20  # elements of which means are made at once
LIMIT_S: Final = 2.0
_LARGE, _SMALL, _TINY = 1e6, 1e-3, 1e-4


class _NotShown(Exception):
    """Says why."""


class _Plane(NamedTuple):
    """Two dims of a tensor (`library` is torch) or an array (numpy)."""

    library: Any
    tensor: LocalTensor
    indices: list[int]
    numbers: Any


class TensorViews:
    """Shows tensors and arrays of `namespace()`."""

    def __init__(self, namespace: Callable[[], Mapping[str, object]]) -> None:
        self._namespace = namespace

    def window(self, asked: GetWindow) -> Window | Refused:
        """Return some of its numbers, as text."""
        try:
            with self._plane(asked.name, asked.indices) as plane:
                return _window(plane, asked.row, asked.column)
        except _NotShown as why:
            return Refused(str(why))

    def picture(self, asked: GetPicture) -> Picture | Refused:
        """Return the means of its parts, as dots."""
        try:
            with self._plane(asked.name, asked.indices) as plane:
                return _picture(plane, asked.name)
        except _NotShown as why:
            return Refused(str(why))

    @contextlib.contextmanager
    def _plane(self, name: str, indices: Sequence[int]) -> Iterator[_Plane]:
        namespace = self._namespace()
        if name not in namespace:
            raise _NotShown(f"this rank has no variable {name!r}")
        value: Any = namespace[name]
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray:
            with numpy.errstate(all="ignore"):
                yield _cut(numpy, _of_array(name, value), value, indices)
            return
        local = _local(torch, name, value)
        with torch.no_grad(), contents.own_stream(torch, local):  # type: ignore[union-attr]
            yield _cut(torch, _of_tensor(torch, value, local), local, indices)


def _of_array(name: str, array: Any) -> LocalTensor:
    if array.dtype.kind not in "fiub":
        raise _NotShown(f"{name} is an array of {array.dtype}; only real numbers are shown")
    return LocalTensor(list(array.shape), str(array.dtype), "cpu", None)


def _local(torch: Any, name: str, value: object) -> Any:
    kind = described.type_name(type(value))
    is_ready = torch is not None and hasattr(torch, "nn")  # else it is being imported
    if not is_ready or not described.is_tensor(torch, type(value)):
        own = "tensors and arrays of PyTorch's and NumPy's own types"
        raise _NotShown(f"{name} is a {kind}; only {own} are shown")
    local = contents.local_part(torch, value)
    if local is None:
        _, dtype, device, _ = described.head_of_tensor(torch, value)
        dense = "dense tensors of real numbers"
        raise _NotShown(f"{name} is a {kind} of {dtype} on {device}; only {dense} are shown")
    return local


def _of_tensor(torch: Any, value: object, local: object) -> LocalTensor:
    shape, dtype, device, _ = described.head_of_tensor(torch, local)
    whole = None if local is value else described.head_of_tensor(torch, value)[0]
    return LocalTensor(shape, dtype, device, whole)


def _cut(library: object, tensor: LocalTensor, value: Any, indices: Sequence[int]) -> _Plane:
    # The last two dims; one alone is a row, and a single number one of one
    shape = tensor.shape
    sizes = shape[:-2]
    if 0 in sizes:
        return _Plane(library, tensor, [0] * len(sizes), value.reshape(0, shape[-1]))
    known = itertools.chain(indices, itertools.repeat(0))
    at = [min(max(each, 0), size - 1) for each, size in zip(known, sizes, strict=False)]
    numbers = value[tuple(at)] if at else value
    return _Plane(library, tensor, at, numbers.reshape(1, -1) if len(shape) < 2 else numbers)


# ------------------------------------------------------------------------------------- a window


def _window(plane: _Plane, row: int, column: int) -> Window:
    rows, columns = plane.numbers.shape
    row, column = min(max(row, 0), max(rows - 1, 0)), min(max(column, 0), max(columns - 1, 0))
    numbers = plane.numbers[row : row + MAX_ROWS, column : column + MAX_COLUMNS]
    return Window(plane.tensor, plane.indices, row, column, texts(numbers.tolist()))


def texts(rows: list[list[Any]]) -> list[list[str]]:
    """Write numbers so that those of a window can be compared: in one way, which the largest of
    them decides; what is too small for it has its exponent."""
    finite = [abs(each) for row in rows for each in row if math.isfinite(each)]
    largest = max(finite, default=0)
    if all(each == int(each) for each in finite) and largest < _LARGE:
        form = ".0f"
    else:
        form = ".4f" if _SMALL <= largest < _LARGE else ".3e"
    return [[_text(each, form) for each in row] for row in rows]


def _text(number: Any, form: str) -> str:
    if type(number) is not float:
        return str(number)
    if form == ".4f" and 0 < abs(number) < _TINY:
        return f"{number:.1e}"
    return "0" if number == 0 else f"{number:{form}}"


# ------------------------------------------------------------------------------------ a picture


def _picture(plane: _Plane, name: str) -> Picture:
    rows, columns = plane.numbers.shape
    if not rows * columns:
        raise _NotShown(f"{name} is empty: {plane.tensor.shape}")
    each = -(-rows // MAX_DOTS), -(-columns // MAX_DOTS)
    means = _means(plane, each)
    if means is None:
        raise _NotShown(
            f"{name} has {rows * columns:,} numbers there, which are not gone through in "
            f"{LIMIT_S:.0f} s; the table shows some"
        )
    least, greatest, dots = _dots(plane.library, means)
    return Picture(
        tensor=plane.tensor,
        indices=plane.indices,
        rows=means.shape[0],
        columns=means.shape[1],
        each=list(each),
        least=least,
        greatest=greatest,
        dots=base64.b64encode(dots).decode(),
    )


def _means(plane: _Plane, each: tuple[int, int]) -> Any:
    # Of blocks of so many rows and columns, those at the edges smaller; None if there is no time
    library, numbers = plane.library, plane.numbers
    rows, columns = (-(-size // part) for size, part in zip(numbers.shape, each, strict=True))
    found = library.empty((rows, columns), dtype=library.float64)
    across = min(columns, max(1, PIECE // math.prod(each)))
    down = min(rows, max(1, PIECE // (math.prod(each) * across)))
    until = time.monotonic() + LIMIT_S
    means = _array_means if library.__name__ == "numpy" else _tensor_means
    for row, column in itertools.product(range(0, rows, down), range(0, columns, across)):
        if time.monotonic() > until:
            return None
        top, left = row * each[0], column * each[1]
        piece = numbers[top : top + down * each[0], left : left + across * each[1]]
        found[row : row + down, column : column + across] = means(library, piece, each)
    return found


def _tensor_means(torch: Any, piece: Any, each: tuple[int, int]) -> Any:
    wide = piece.double()[None]
    return torch.nn.functional.avg_pool2d(wide, each, ceil_mode=True)[0].cpu()


def _array_means(numpy: Any, piece: Any, each: tuple[int, int]) -> Any:
    found = piece.astype(numpy.float64)
    for axis, part in enumerate(each):
        starts = numpy.arange(0, piece.shape[axis], part)
        counts = numpy.diff(numpy.append(starts, piece.shape[axis]))
        sums = numpy.add.reduceat(found, starts, axis=axis)
        found = sums / (counts[:, None] if axis == 0 else counts)
    return found


def _dots(library: Any, means: Any) -> tuple[float | None, float | None, bytes]:
    # What is infinite is drawn as the least or the greatest
    finite = library.isfinite(means)
    known = means[finite]
    least, greatest = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    span = (greatest - least) or 1.0
    scaled = library.clip((means - least) / span * (NAN_DOT - 1), 0, NAN_DOT - 1)
    levels = library.where(library.isnan(means), float(NAN_DOT), library.round(scaled))
    dots = bytes(map(int, levels.reshape(-1).tolist()))
    return (least, greatest, dots) if len(known) else (None, None, dots)
