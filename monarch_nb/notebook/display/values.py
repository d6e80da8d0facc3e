"""How a `ValueMesh` looks: numbers as a heat map along the axes, records as a table, the rest by
its `repr`.

Rules of the file: the plain text says all that the HTML says; whatever a rank could have written is
escaped and cut; a value that cannot be read or described does not spoil the others. Colour is one
hue laid over the page's own background, so it reads on light and dark; the number stands in it.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monarch_nb.core.errors.folding import rank_runs
from monarch_nb.core.text.units import count, sizes_text
from monarch_nb.notebook.display.grids import Grid, grid_html, grid_of, grid_text

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh

MAX_ROWS = 64
MAX_PLACES = 16
"""With more ranks than this, those with equal values are one row."""
MAX_VALUE = 200  # characters
MAX_FIELD = 60
MAX_FIELDS = 16
MAX_DESCRIBED = 10_000_000
"""Elements of an array up to which its smallest, mean and largest are looked for."""

_HUE = "47,143,214"
_BAD = "#D55E00"
_MONO = "text-align:left;font-family:ui-monospace,monospace;white-space:pre"


def values_text(values: ValueMesh[Any]) -> str:
    return _view(values).text()


def values_html(values: ValueMesh[Any]) -> str:
    return _view(values).html()


def _view(values: ValueMesh[Any]) -> _Numbers | _Table:
    title = f"ValueMesh {sizes_text(values.sizes)}".strip()
    read = [_read(values, rank) for rank in range(len(values))]
    found = [_number(value) for value in read]
    if all(number is not None for number in found):
        return _Numbers(title, grid_of(values.sizes), [n for n in found if n is not None])
    fields = [_fields(value) for value in read]
    names = list(fields[0] or ())
    if names and all(each is not None and list(each) == names for each in fields):
        rows = [[_field(value) for value in (each or {}).values()] for each in fields]
        return _Table(title, values.sizes, names, rows)
    return _Table(
        title, values.sizes, ["value"], [[_described(value, MAX_VALUE)] for value in read]
    )


# -------------------------------------------------------------------------------------- numbers


class _Numbers:
    def __init__(self, title: str, grid: Grid, values: Sequence[float]) -> None:
        self._title = title
        self._grid = grid
        self._values = values
        finite = [float(value) for value in values if math.isfinite(value)]
        self._low, self._high = min(finite, default=0.0), max(finite, default=0.0)
        self._strange = len(values) - len(finite)
        self._mean = math.fsum(value / len(finite) for value in finite) if finite else None

    @property
    def _caption(self) -> str:
        said = []
        if self._mean is not None:
            said = [f"{_short(self._low)} to {_short(self._high)}, mean {_short(self._mean)}"]
        if self._strange:
            said.append(f"{self._strange} not finite")
        return "; ".join(said)

    def text(self) -> str:
        body = grid_text(self._grid, lambda rank: _short(self._values[rank]))
        return f"{self._title}: {self._caption}\n{body}"

    def html(self) -> str:
        title = f"<b>{html.escape(self._title)}</b> {html.escape(self._caption)}"
        return f"<div>{title}{grid_html(self._grid, self._cell)}</div>"

    def _cell(self, rank: int) -> str:
        value = self._values[rank]
        style = "text-align:right;font-family:ui-monospace,monospace;"
        if not math.isfinite(value):
            return f"<td style='{style}outline:2px solid {_BAD}'>✕ {_short(value)}</td>"
        span = self._high - self._low
        share = (value - self._low) / span if 0 < span < math.inf else 0.0
        return f"<td style='{style}background:rgba({_HUE},{0.6 * share:.2f})'>{_short(value)}</td>"


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        try:
            value = value.item()  # True of a tensor counts as 1
        except Exception:  # noqa: BLE001  no data (torch's meta device)
            return None
    if isinstance(value, numbers.Integral):
        return int(value) if abs(int(value)) < 1 << 1000 else None  # what floats can compare with
    if isinstance(value, numbers.Real):
        return float(value)
    return None


def _short(value: float) -> str:
    if isinstance(value, int) and abs(value) < 10**9:
        return str(value)
    return f"{value:.4g}"


# ----------------------------------------------------------------------------- records, the rest


class _Table:
    def __init__(
        self,
        title: str,
        sizes: Mapping[str, int],
        names: Sequence[str],
        rows: Sequence[Sequence[str]],
    ) -> None:
        self._title = title
        self._headings, self._rows = _placed(sizes, names, rows)

    def text(self) -> str:
        # Aligned columns; a text of several lines keeps them
        shown = [self._headings, *self._rows[:MAX_ROWS]]
        last = len(self._headings) - 1
        widths = [max(len(row[i]) for row in shown) for i in range(last)]
        lines = []
        for row in shown:
            cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
            indent = "\n" + " " * (sum(widths) + 2 * last)
            lines.append("  ".join([*cells, row[last].replace("\n", indent)]).rstrip())
        return "\n".join([self._title, *lines, *self._more()])

    def html(self) -> str:
        head = "".join(
            f"<th style='text-align:left'>{html.escape(one)}</th>" for one in self._headings
        )
        body = "".join(
            f"<tr>{''.join(f'<td style={_MONO!r}>{html.escape(text)}</td>' for text in row)}</tr>"
            for row in self._rows[:MAX_ROWS]
        )
        note = "".join(f"<div>{text}</div>" for text in self._more())
        table = f"<table style='color:inherit'><thead><tr>{head}</tr></thead>{body}</table>"
        return f"<div><b>{html.escape(self._title)}</b>{table}{note}</div>"

    def _more(self) -> list[str]:
        more = len(self._rows) - MAX_ROWS
        return [f"... {count(more, 'more row')}"] if more > 0 else []


def _placed(
    sizes: Mapping[str, int], names: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    # With the place of each rank before its row, or with the ranks that have equal rows
    if len(rows) <= MAX_PLACES:
        places = itertools.product(*map(range, sizes.values()))
        named = [[*map(str, place), *row] for place, row in zip(places, rows, strict=True)]
        return [*sizes, *names], named
    equal: dict[tuple[str, ...], list[int]] = {}
    for rank, row in enumerate(rows):
        equal.setdefault(tuple(row), []).append(rank)
    return ["ranks", *names], [[rank_runs(ranks), *row] for row, ranks in equal.items()]


def _fields(value: object) -> dict[str, object] | None:
    if isinstance(value, dict):
        found = value if all(isinstance(key, str) for key in value) else None
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.repr]
        found = {name: getattr(value, name, "") for name in names}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        found = dict(value._asdict())
    else:
        return None
    return found if found and len(found) <= MAX_FIELDS else None


def _field(value: object) -> str:
    return f"{value:.6g}" if type(value) is float else _described(value, MAX_FIELD)


# --------------------------------------------------------------------------------------- one value


class _Unreadable:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def __repr__(self) -> str:
        return f"<cannot be read: {type(self._error).__name__}: {self._error}>"


def _read(values: ValueMesh[Any], rank: int) -> object:
    try:
        return values.get(rank)
    except Exception as error:  # noqa: BLE001  unpickling is the user's code
        return _Unreadable(error)


def _described(value: object, limit: int) -> str:
    # An array by its shape and range, anything else by its `repr`, cut
    try:
        text = _array(value) or repr(value)
    except Exception as error:  # noqa: BLE001  a user's class; the other values are still shown
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return f"{text[:limit]}..." if len(text) > limit else text


def _array(value: object) -> str:
    # `float32 (256, 8), -1.2 to 3.4, mean 0.01`; empty for what is no array
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if kind is None or not isinstance(shape, tuple) or not shape:
        return ""
    sizes = tuple(int(size) for size in shape)
    said = f"{str(kind).removeprefix('torch.')} {sizes}"
    device = str(getattr(value, "device", "cpu"))
    where = "" if device == "cpu" else f" on {device}"
    return f"{said}{where}{_range(value, math.prod(sizes))}"


def _range(value: Any, elements: int) -> str:
    if not 0 < elements <= MAX_DESCRIBED:
        return ""
    try:
        wide: Callable[[], Any] | None = getattr(value, "double", None)  # a mean needs it in torch
        data = value.detach().double() if wide else value
        low, high, mean = (float(found) for found in (data.min(), data.max(), data.mean()))
    except Exception:  # noqa: BLE001  texts, complex numbers, no data
        return ""
    return f", {_short(low)} to {_short(high)}, mean {_short(mean)}"
