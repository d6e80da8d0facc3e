"""`monarch_nb.log` and `run`: a program tells how it is doing; the curves are drawn elsewhere.

Rules of the file: a call puts numbers into a queue and takes no lock, for it stands in the inner
loop and may be in a signal handler. Who sends what has gathered attaches itself here: on a rank a
thread, in the controller whoever looks at the curves. Until then, and while nothing can be sent,
what has gathered is folded, so that it stays small.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn, SupportsIndex

from monarch_nb.core.curves import MAX_STEP, Fold, Sample, thinned
from monarch_nb.core.runs import RunKey, starts_again
from monarch_nb.errors import BrokenError
from monarch_nb.process import current
from monarch_nb.process.instance import here
from monarch_nb.services import metric_writers

MAX_NAMES: Final = 32
MAX_WAITING: Final = 4_096  # values; then those that wait are folded
MAX_POINTS: Final = 256  # of a name in one batch
MAX_RUN_NAME: Final = 100  # characters
TAKE_S: Final = 0.05

Key = tuple[int, RunKey, str]  # tag, run, name


class Batch(NamedTuple):
    """What has gathered, by the notebook cell that caused it, by run and by name; values that were
    left out because there are too many names, and the first of these names."""

    samples: dict[Key, list[Sample]]
    left_out: int
    first_left_out: str


class Recorder:
    def __init__(self) -> None:
        self._wake: Callable[[], None] = _nobody
        self._values: deque[tuple[int, RunKey, str, int, float]] = deque()
        self._folds: dict[Key, Fold] = {}
        self._folding = threading.Lock()
        self._run: RunKey | None = None
        self._begun: dict[str, int] = {}  # runs of each name in the cell of `_run`
        self._first_step: dict[str, int] = {}  # of each name in this run
        self._last: dict[str, tuple[int, int]] = {}  # its last step, and the cell
        self._left_out = 0
        self._first_left_out = ""

    def attach(self, wake: Callable[[], None]) -> None:
        """Call `wake` with each value from now on: there is something to send."""
        self._wake = wake

    @property
    def is_attached(self) -> bool:
        return self._wake is not _nobody

    def begin(self, name: str) -> RunKey:
        """Begin a run. Any thread."""
        cell = _tag()
        if self._run is None or self._run.cell != cell:
            self._begun = {}
        number = self._begun[name] = self._begun.get(name, 0) + 1
        self._first_step, self._last = {}, {}
        self._run = run = RunKey(cell, name, number)
        return run

    def add(self, name: str, step: int | None, value: float) -> int:
        """Add one value; its step is returned. Any thread."""
        tag, run = _tag(), self._run
        last = self._last.get(name)
        if step is None:
            step = 0 if last is None else last[0] + 1
        if run is None:
            run = self.begin("")
        elif last is not None and step <= last[0] and self._starts_again(name, step, tag):
            run, last = self.begin(""), None
        if last is None:
            if not self._admit(name):
                return step
            self._first_step[name] = step
        self._last[name] = step, tag
        self._values.append((tag, run, name, step, value))
        if len(self._values) > MAX_WAITING and self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()
        self._wake()
        return step

    def __bool__(self) -> bool:
        return bool(self._values or self._folds or self._left_out)

    def take(self) -> Batch:
        """Take what has gathered since the last time; nothing while another thread folds."""
        folds: dict[Key, Fold] = {}
        # not if another thread, or what a signal has interrupted, is at it
        if self._folding.acquire(timeout=TAKE_S):
            try:
                self._fold()
                folds, self._folds = self._folds, {}
            finally:
                self._folding.release()
        samples = {key: fold.samples() for key, fold in folds.items()}
        left_out, self._left_out = self._left_out, 0
        return Batch(samples, left_out, self._first_left_out)

    def forget(self) -> None:
        """Forget what has gathered: this process is a fork, and it is its parent's."""
        self._values, self._folds = deque(), {}
        self._run, self._first_step, self._last = None, {}, {}
        self._folding = threading.Lock()
        self._wake = _nobody

    def _starts_again(self, name: str, step: int, tag: int) -> bool:
        last, cell = self._last[name]
        first = self._first_step.get(name, step)
        return starts_again(step, first, last, is_other_cell=tag != cell)

    def _admit(self, name: str) -> bool:
        if len(self._last) < MAX_NAMES:
            return True
        self._first_left_out = self._first_left_out or name
        self._left_out += 1
        self._wake()
        return False

    def _fold(self) -> None:
        # by who has `_folding`
        gathered: dict[Key, tuple[list[int], list[float]]] = {}
        for _ in range(len(self._values)):
            tag, run, name, step, value = self._values.popleft()
            steps, values = gathered.setdefault((tag, run, name), ([], []))
            steps.append(step)
            values.append(value)
        for key, columns in gathered.items():
            fold = self._folds.setdefault(key, Fold(MAX_POINTS))
            for sample in thinned(*columns, MAX_POINTS):
                fold.add(sample)


def log(step: int | None = None, **values: Any) -> None:
    """Tell how the program is doing: `log(loss=loss, lr=lr)`. The mesh view draws it over steps.

    On a rank (in a cell, an endpoint, a thread) the values are those of this rank; all ranks are
    folded to mean, lowest and highest. In the notebook or script itself they are kept as rank 0 of
    a mesh named "controller". Returns within microseconds and never waits: values leave ten times a
    second, and when a cell ends.

    Args:
        step: what the values are drawn over. None counts: one more than the last step of that name
            on this rank, from 0.
        values: one number for each name: int, float, a numpy scalar, a tensor without dimensions.
            The value of a tensor on a GPU is read at once, which waits for the GPU: log every tenth
            step if that matters. NaN and infinities are gaps in the curve. A run has 32 names.

    Raises:
        TypeError: a value that is no single number, or a step that is no integer. Nothing is
            logged then.
        BrokenError: in a process that was forked from a rank.

    Example:
        >>> for step in range(3):
        ...     log(step, loss=1 / (1 + step))
    """
    at = None if step is None else _step(step)
    for name, value in values.items():
        if type(value) is not float:
            values[name] = _number(name, value)
    if metric_writers.writers:
        steps = {name: recorder.add(name, at, value) for name, value in values.items()}
        metric_writers.write(steps, values)
        return
    for name, value in values.items():
        recorder.add(name, at, value)


def run(name: str) -> None:
    """Begin a run: what this rank logs from now on is drawn apart from what it logged before.

    Call it on each rank, as `log`. Earlier runs stay in the picture, paler, and in
    `mesh.metrics()`. Without it a run begins where steps start again: in the same cell, or in a
    later one. Steps that go back by less than half of the run (a resume from a checkpoint) go on.

    Args:
        name: what the picture calls it; 100 characters. The same name again is another run.

    Raises:
        TypeError: a name that is no text.

    Example:
        >>> for lr in (1e-3, 1e-4):
        ...     run(f"lr={lr:g}")
        ...     for step in range(3):
        ...         log(step, loss=lr / (1 + step))
    """
    if not isinstance(name, str):
        raise TypeError(f"run: a name is a text, not {_shown(name)}")
    recorder.begin(name[:MAX_RUN_NAME])


def _step(step: SupportsIndex) -> int:
    try:
        found = operator.index(step)
    except TypeError:
        raise TypeError(f"log: a step is an integer, not {_shown(step)}") from None
    if abs(found) > MAX_STEP:
        raise TypeError(f"log: step {found:.3g} is beyond 2**53")
    return found


def _number(name: str, value: Any) -> float:
    shape = getattr(value, "shape", ())
    if len(shape):
        raise TypeError(
            f"log: {name!r} has shape {tuple(shape)}; log one number of it: {name}.mean()"
        )
    try:
        item = getattr(value, "item", None)  # unlike float(), fine with a tensor that needs a grad
        found = value if item is None else item()
        if not isinstance(found, str | bytes | bytearray):
            return float(found)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        pass
    raise TypeError(f"log: {name!r} is to be a number, not {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bytes) else ""
    kind = type(value).__name__
    return f"{text} ({kind})" if 0 < len(text) <= 40 else f"a {kind}"


def _tag() -> int:
    if (found := here.get()) is not None:
        return found.tag
    runtime = current.running()
    return 0 if runtime is None else runtime.root.tag


def _nobody() -> None:
    return None


def _refuse() -> NoReturn:
    raise BrokenError(
        "this process was forked from a rank of a mesh and is none itself; log in the rank"
    )


recorder: Final = Recorder()
"""The one of this process."""


def _after_fork() -> None:
    is_of_rank = recorder.is_attached
    recorder.forget()
    if is_of_rank:
        recorder.attach(_refuse)


os.register_at_fork(after_in_child=_after_fork)
