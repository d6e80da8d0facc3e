"""The notebook's own process as one that is debugged, without a port and without another process.

ipykernel's way is debugpy's adapter: a program that listens on the loopback, where every user of
the host may connect and run code, also when the debugger has been turned off again.
"""

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

from monarch_nb.debugger.debuggee import Debuggee, Json, OnEnd, OnEvent
from monarch_nb.debugger.pydevd import Tracer, end_at_users_frame

_KERNEL: Final = Path(__file__).parents[1]
_LIBRARIES: Final = "site-packages", "dist-packages"


class _NoListener:
    """Nobody looks at a board for the controller."""

    def pause(self, who: object, where: str) -> None: ...
    def unpause(self, who: object) -> None: ...


class Controller(Debuggee):
    """`shell` runs its cells; `is_busy` says whether it does; `modules` are the files of those that
    the kernel has loaded for itself."""

    def __init__(self, shell: Any, is_busy: Callable[[], bool], modules: Iterable[str]) -> None:
        libraries = set(filter(None, map(_library_of, modules)))
        super().__init__(_NoListener(), runtime=[_KERNEL], libraries=libraries)
        self._shell = shell
        self._is_busy = is_busy
        self._shows = shell.showtraceback
        self._showing = type(shell).showtraceback.__code__
        self._statements = type(shell).run_ast_nodes.__code__
        shell.events.register("pre_execute", self._trace_cell)
        self.install()

    def watch(self, tracer: Tracer | None) -> None:
        """Have cells that fail looked at before their traceback is shown."""
        self._shell.showtraceback = (
            self._shows if tracer is None else partial(self._look_and_show, tracer)
        )

    def running(self) -> set[int]:
        """Return the main thread, while a cell runs."""
        return {threading.main_thread().ident or 0} if self._is_busy() else set()

    def is_between_statements(self, frame: FrameType) -> bool:
        """Return whether this is called by what runs a cell a statement at a time."""
        codes = (at.f_code for at, _ in walk_stack(frame))
        found = next((code for code in codes if code in (self._statements, self._showing)), None)
        return found is self._statements

    def _trace_cell(self) -> None:
        if (tracer := self._tracer) is not None:
            tracer.trace_here()

    def _look_and_show(self, tracer: Tracer, *args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and kwargs.get("running_compiled_code"):
            with contextlib.suppress(KeyboardInterrupt):  # of somebody who has seen enough
                tracer.uncaught(error)
            end_at_users_frame(error)
        with tracer.untraced():
            self._shows(*args, **kwargs)


def _library_of(module: str) -> Path | None:
    # The package, or the module, that is installed as a whole: pydevd compares with each
    path = Path(module)
    below = [path, *path.parents]
    return next((each for each in below if each.parent.name in _LIBRARIES), None)


class ControllerLink:
    """The debugger of the controller, as `control.debug.dap.DapLink` is that of a rank."""

    def __init__(self, controller: Controller, on_event: OnEvent, on_end: OnEnd) -> None:
        self.opened: Future[None] = Future()
        self._controller = controller
        self._on_event = on_event
        self._on_end = on_end
        self._numbers = itertools.count(1)
        controller.open(self._heard, self._ended)

    def request(self, command: str, arguments: Json) -> Future[Json]:
        """Ask; the response has `success` false if it cannot be had. Returns at once."""
        answered: Future[Json] = Future()
        request = {"type": "request", "seq": next(self._numbers), "command": command}
        self._controller.request({**request, "arguments": arguments}, answered.set_result)
        return answered

    def close(self) -> Future[None]:
        """Detach: every thread goes on, nothing is traced any more."""
        closed: Future[None] = Future()
        self._controller.close(then=lambda: closed.set_result(None))
        return closed

    def _heard(self, event: Json) -> None:
        if event.get("event") == "opened":
            self.opened.set_result(None)
        else:
            self._on_event(event)

    def _ended(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(RuntimeError(why))
        self._on_end(why)
