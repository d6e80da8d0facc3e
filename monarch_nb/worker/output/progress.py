"""Progress bars of a rank, sent as data instead of text.

Rules of the file: tqdm and rich are changed when they are imported, never imported from here, and
are left as they are where they write elsewhere than to this rank's streams. A bar must never break
the loop that it watches. A report takes no lock, for it may come from a `__del__`: it leaves the
last state of a bar where a thread finds it, ten times a second, or whoever drains.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from monarch_nb.net.threads import helper_thread
from monarch_nb.worker.imports import when_imported
from monarch_nb.worker.output.stdio import CurrentTag, RankStream

TICK_S: Final = 0.1

State = dict[str, Any]
Send = Callable[[int, list[State]], None]
Bar = Any  # of `tqdm`, whatever its version
Patch = Callable[[ModuleType, "Reporter"], None]


class Reporter:
    """Collects the states of this rank's bars; `send(tag, states)` gets those that have changed."""

    def __init__(self, current_tag: CurrentTag, send: Send) -> None:
        self.current_tag = current_tag
        self._send = send
        self._pid = os.getpid()
        self._ids = itertools.count(1)
        self._serials = itertools.count(1)
        self._changed: dict[int, tuple[int, State]] = {}
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awake = False
        self._sending = threading.RLock()
        self._thread: threading.Thread | None = None
        self.polled: dict[int, Callable[[], None]] = {}  # asked for news with every tick
        self.living: weakref.WeakValueDictionary[int, Bar] = weakref.WeakValueDictionary()

    def is_ours(self, file: object) -> bool:
        """Return whether what is written there would be sent to the controller by this process."""
        return isinstance(file, RankStream) and os.getpid() == self._pid

    def new_id(self) -> int:
        return next(self._ids)

    def report(self, tag: int, state: State) -> None:
        self._changed[state["id"]] = tag, {**state, "serial": next(self._serials)}
        self.wake()

    def wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        if self._thread is None:
            self._thread = helper_thread(self._run, "monarch-progress")
            self._thread.start()
        self._wake.put(None)

    def drain(self) -> None:
        """Send what has changed; also of bars of tqdm that have moved since they were drawn."""
        if os.getpid() != self._pid:
            return
        with self._sending:  # else a cell could end while its bars are on their way
            for bar in list(self.living.values()):
                with contextlib.suppress(Exception):  # a count that is no number
                    if bar.n != bar._monarch_told:
                        _report_tqdm(self, bar)
            by_tag: dict[int, list[State]] = {}
            while self._changed:
                _, (tag, state) = self._changed.popitem()
                by_tag.setdefault(tag, []).append(state)
            for tag, states in by_tag.items():
                self._send(tag, sorted(states, key=lambda state: int(state["id"])))

    def _run(self) -> None:
        pause = threading.Event()  # never set
        while True:
            self._wake.get()
            self._is_awake = False
            for poll in list(self.polled.values()):
                poll()
            with contextlib.suppress(Exception):  # the link is gone, and so will this process be
                self.drain()
            pause.wait(TICK_S)
            if self.polled:
                self.wake()


class _Silent:
    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing."""

    def isatty(self) -> bool:
        return False


_SILENT: Final = _Silent()

# ------------------------------------------------------------------------------------------ tqdm

_FILE: Final = 4  # place of `file` among tqdm's arguments


def _patch_tqdm(module: ModuleType, reporter: Reporter) -> None:
    bar_class = module.tqdm
    start, display, close = bar_class.__init__, bar_class.display, bar_class.close

    @functools.wraps(start)
    def init(self: Bar, *args: object, **options: object) -> None:
        file = args[_FILE] if len(args) > _FILE else options.get("file")
        if reporter.is_ours(file or sys.stderr) and not options.get("gui"):
            self._monarch_bar = reporter.new_id(), reporter.current_tag()
            self._monarch_told = None
            if len(args) > _FILE:
                args = (*args[:_FILE], _SILENT, *args[_FILE + 1 :])
            else:
                options["file"] = _SILENT
        start(self, *args, **options)

    @functools.wraps(display)
    def show(self: Bar, msg: str | None = None, pos: int | None = None) -> object:
        if not hasattr(self, "_monarch_bar"):
            return display(self, msg, pos)
        if not self.disable:
            reporter.living[self._monarch_bar[0]] = self
            _report_tqdm(reporter, self)
        return True

    @functools.wraps(close)
    def end(self: Bar) -> None:
        is_ours = hasattr(self, "_monarch_bar") and hasattr(self, "last_print_t")
        was_open = is_ours and not self.disable
        stays = was_open and (self.pos == 0 if self.leave is None else bool(self.leave))
        close(self)
        if was_open:
            reporter.living.pop(self._monarch_bar[0], None)
        if was_open and self.last_print_t >= self.start_t + self.delay:
            _report_tqdm(reporter, self, closed=True, stays=stays)

    bar_class.__init__, bar_class.display, bar_class.close = init, show, end


def _report_tqdm(reporter: Reporter, bar: Bar, *, closed: bool = False, stays: bool = True) -> None:
    with contextlib.suppress(Exception):  # a number that is none; the user's loop goes on
        bar._monarch_told = bar.n
        facts = bar.format_dict
        factor = 1 if isinstance(bar.unit_scale, bool) else bar.unit_scale or 1
        identity, tag = bar._monarch_bar
        state = {
            "id": identity,
            "description": str(bar.desc or "").removesuffix(": "),
            "done": float(bar.n * factor),
            "total": None if bar.total is None else float(bar.total * factor),
            "unit": "" if bar.unit == "it" else str(bar.unit),
            "scaled": bar.unit_scale is not False,
            "elapsed_s": float(facts["elapsed"]),
            "rate": None if closed or not facts["rate"] else float(facts["rate"] * factor),
            "postfix": str(bar.postfix or ""),
            "closed": closed,
            "stays": stays,
        }
        reporter.report(tag, state)


def _patch_tqdm_notebook(module: ModuleType, _: Reporter) -> None:
    # Widgets of a rank would reach nobody: its bars are those of `tqdm.std`
    base: Any = sys.modules["tqdm.std"].tqdm

    class TqdmNotebook(base):  # type: ignore[misc]  # tqdm may be missing
        def __init__(self, *args: object, display: bool = True, **options: object) -> None:
            if len(args) <= 9:  # `disable` by name: None would mean, not here
                options["disable"] = bool(options.get("disable", False)) or not display
            super().__init__(*args, **options)

    def trange(*args: int, **options: Any) -> TqdmNotebook:
        return TqdmNotebook(range(*args), **options)

    vars(module).update(
        tqdm=TqdmNotebook, tqdm_notebook=TqdmNotebook, trange=trange, tnrange=trange
    )


# ------------------------------------------------------------------------------------------ rich


RichProgress = Any  # of `rich.progress`, whatever its version
RichTask = Any


def _patch_rich(module: ModuleType, reporter: Reporter) -> None:
    progress_class = module.Progress
    start, stop, refresh = progress_class.start, progress_class.stop, progress_class.refresh

    @functools.wraps(start)
    def begin(self: RichProgress) -> None:
        if self.disable or not reporter.is_ours(self.console.file):
            start(self)
        elif not hasattr(self, "_monarch_tasks"):
            self._monarch_tasks = _RichTasks(reporter, self)

    @functools.wraps(stop)
    def end(self: RichProgress) -> None:
        if tasks := self.__dict__.pop("_monarch_tasks", None):
            tasks.close()
        else:
            stop(self)

    @functools.wraps(refresh)
    def draw(self: RichProgress) -> None:
        if tasks := vars(self).get("_monarch_tasks"):
            tasks.poll()
        else:
            refresh(self)

    progress_class.start, progress_class.stop, progress_class.refresh = begin, end, draw


class _RichTasks:
    def __init__(self, reporter: Reporter, progress: RichProgress) -> None:
        self._reporter = reporter
        self._progress = progress
        self._tag = reporter.current_tag()
        self._ids: dict[int, int] = {}
        self._told: dict[int, State] = {}
        progress.live._started = True  # `track` has a thread that looks at it
        reporter.polled[id(self)] = self.poll
        reporter.wake()

    def poll(self, *, closed: bool = False) -> None:
        with self._progress._lock, contextlib.suppress(Exception):  # who looks first, tells first
            living = {task.id: task for task in self._progress.tasks if task.visible}
            for key in [key for key in self._told if key not in living]:
                self._report({**self._told.pop(key), "closed": True, "stays": False})
            for key, task in living.items():
                state = self._state(task, closed=closed)
                told = self._told.get(key)
                if told is None or _moved(state) != _moved(told):
                    self._told[key] = state
                    self._report(state)

    def close(self) -> None:
        self._progress.live._started = False
        self._reporter.polled.pop(id(self), None)
        self.poll(closed=True)

    def _report(self, state: State) -> None:
        self._reporter.report(self._tag, state)

    def _state(self, task: RichTask, *, closed: bool) -> State:
        if task.id not in self._ids:
            self._ids[task.id] = self._reporter.new_id()
        plain = sys.modules["rich.text"].Text.from_markup(str(task.description)).plain
        return {
            "id": self._ids[task.id],
            "description": plain,
            "done": float(task.completed),
            "total": None if task.total is None else float(task.total),
            "elapsed_s": float(task.elapsed or 0.0),
            "rate": None if task.finished or not task.speed else float(task.speed),
            "closed": closed or task.finished,
            "stays": not (closed and self._progress.live.transient),
        }


def _moved(state: State) -> tuple[object, ...]:
    return tuple(state[key] for key in ("description", "done", "total", "closed", "stays"))


# ----------------------------------------------------------------------------------- both

PATCHES: Final[dict[str, Patch]] = {
    "tqdm.std": _patch_tqdm,
    "tqdm.notebook": _patch_tqdm_notebook,
    "rich.progress": _patch_rich,
}


def _apply(name: str, reporter: Reporter, module: ModuleType) -> None:
    with contextlib.suppress(Exception):  # another version: its bars stay text
        PATCHES[name](module, reporter)


def install(current_tag: CurrentTag, send: Send) -> Reporter:
    """Change tqdm and rich, now where they are imported already, else when they are."""
    reporter = Reporter(current_tag, send)
    when_imported({name: functools.partial(_apply, name, reporter) for name in PATCHES})
    return reporter
