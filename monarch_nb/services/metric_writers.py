"""`monarch_nb.log_to`: what is logged is also written to TensorBoard, W&B, MLflow or a function.

Rule of the file: nothing is looked for or imported. Who wants a writer hands it over, on the ranks
that are to write: a rank without one pays nothing, and no value is written that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Write = Callable[[int, dict[str, float]], object]
"""`write(step, {name: value})`."""

writers: Final[list[tuple[object, Write]]] = []
"""Those of this process, with what was handed over."""


def log_to(writer: Any) -> None:
    """Write what this process logs from now on to `writer`, too, in the thread that logs.

    On a rank its own values are written: call it on rank 0 for one curve, on each rank (with a
    folder or a run for each) for all. `log` then takes as long as the writer does, and raises what
    it raises. A writer that is given twice writes once.

    Args:
        writer: a `SummaryWriter` of TensorBoard (anything with `add_scalar`), the module `mlflow`
            (`log_metrics`), a run of W&B (`log`), or a function that is called with
            `(step, {name: value})`. None: write to nothing any more.

    Raises:
        TypeError: anything else.

    Example:
        >>> log_to(lambda step, values: print(step, values))
        >>> log_to(None)
    """
    if writer is None:
        writers.clear()
    elif all(writer is not known for known, _ in writers):
        writers.append((writer, _write_of(writer)))


def write(steps: Mapping[str, int], values: Mapping[str, float]) -> None:
    """Hand values to all writers; those with the same step together."""
    by_step: dict[int, dict[str, float]] = {}
    for name, step in steps.items():
        by_step.setdefault(step, {})[name] = values[name]
    for _, write_one in writers:
        for step, found in by_step.items():
            write_one(step, dict(found))


def _write_of(writer: Any) -> Write:
    if hasattr(writer, "add_scalar"):
        return lambda step, values: [
            writer.add_scalar(name, value, step) for name, value in values.items()
        ]
    if hasattr(writer, "log_metrics"):
        return lambda step, values: writer.log_metrics(values, step=step)
    if hasattr(writer, "log"):
        return lambda step, values: writer.log(values, step=step)
    if callable(writer):
        found: Write = writer
        return found
    raise TypeError(
        "log_to: give a SummaryWriter, a run of W&B, the module mlflow or a function of "
        f"(step, values), not a {type(writer).__name__}"
    )
