"""Failures that reach the root: told once, to the hook, to listeners, or by ending the program;
and how a program that drives a mesh ends when it is told to.

A hook that the user has set is always called, as in Monarch. Without one, a failure that a call of
the user's has raised already is known; another one is shown by the notebook, or ends a script with
its report on stderr.
"""

from __future__ import annotations

import collections
import functools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from monarch_nb.process import interrupts
from monarch_nb.process.supervision.supervision import MeshFailure

KEPT: Final = 200
ENDING_S: Final = 10.0
"""So long a program that is being ended cleans up, before another failure interrupts it again."""
HOOK_MODULES: Final = ("monarch.actor", "monarch_nb")


class FaultService:
    """Keeps the failures of the root and decides who is told."""

    def __init__(self) -> None:
        self.failures: collections.deque[MeshFailure] = collections.deque(maxlen=KEPT)
        self._listeners: list[Callable[[MeshFailure], None]] = []

    def listen(self, callback: Callable[[MeshFailure], None]) -> None:
        self._listeners.append(callback)

    def root_failed(self, failure: MeshFailure, seen: bool) -> None:
        """Decide who is told of a failure that reached the root. `seen`: a call has raised it
        already."""
        self.failures.append(failure)
        hook = _hook()
        if hook is None and (seen or self._listeners):
            for listener in () if seen else self._listeners:
                listener(failure)
            return
        # a thread: a hook is the user's code, and may use the mesh
        end = _end_program if hook is None else functools.partial(_run_hook, hook)
        threading.Thread(target=end, args=(failure,), name="monarch-fault", daemon=True).start()


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """End the program on a failure that nobody handled. Assign your own to keep going:

    `monarch_nb.unhandled_fault_hook = lambda failure: ...`. This default prints the report and ends
    the program by a `KeyboardInterrupt` in its main thread; failures of the next 10 s, while it
    cleans up, are printed only.
    """
    _end_program(failure)


def _hook() -> Callable[[MeshFailure], object] | None:
    for name in HOOK_MODULES:
        found = vars(sys.modules.get(name, object)).get("unhandled_fault_hook")
        if callable(found) and found is not unhandled_fault_hook:
            return found  # type: ignore[no-any-return]  # the user's own hook
    return None


def _run_hook(hook: Callable[[MeshFailure], object], failure: MeshFailure) -> None:
    try:
        hook(failure)
    except BaseException:  # noqa: BLE001  a hook that raises means: end
        _end_program(failure)


class _Ending:
    """When the program was last told to end."""

    def __init__(self) -> None:
        self._began = -ENDING_S
        self._lock = threading.Lock()

    def begins(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._began < ENDING_S:
                return False
            self._began = now
            return True


_ending: Final = _Ending()


def _end_program(failure: MeshFailure) -> None:
    sys.stderr.write(
        "Unhandled monarch error on the root actor, "
        f"hostname={socket.gethostname()}, PID={os.getpid()}\n"
        f"{failure.report()}\n"
    )
    sys.stderr.flush()
    if _ending.begins():  # else it is at its clean-up
        interrupts.interrupt_main()  # a KeyboardInterrupt there, even in a C wait


def exit_when_told() -> None:
    """Let a failure interrupt the main thread wherever it waits; and end in an orderly way on
    SIGTERM, where the program has no plan of its own.

    The default would end this process without its actors' clean-up; a Jupyter kernel has its own
    way.
    """
    if threading.current_thread() is not threading.main_thread() or "ipykernel" in sys.modules:
        return
    interrupts.allow_wakeups()
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
