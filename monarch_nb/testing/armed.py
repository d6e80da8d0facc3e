"""The faults that are armed in this process, and what they do to it.

Rules: a fault is counted and decided under a lock, and done outside of it. What a fault does to a
process it does to this very one; it needs nobody's help, also to wake up again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from monarch_nb.core.points import OnLink, armed

AT_START: Final = "MONARCH_NB_FAULT"
"""In the environment of a rank that is started: what happens to it at `rank.started`."""
_SIGEV_SIGNAL: Final = 0
_LATE_S: Final = 1.0


class ArmedFault:
    """Something that happens at a point of this process: `after` so many times without it, then so
    many `times`, None: always."""

    def __init__(
        self,
        at: str,
        action: str,
        seconds: float = 0.0,
        *,
        after: int = 0,
        times: int | None = 1,
        hosts: frozenset[int] | None = None,
        error: Callable[[], BaseException] | None = None,
    ) -> None:
        self.at = at
        self.action = action
        self.seconds = seconds
        self.fired = 0
        self._after = after
        self._times = times
        self._hosts = hosts  # at the other ends of links; None: all
        self._error = error
        self._until: dict[int, float] = {}  # hosts to which there is no connection
        self._lock = threading.Lock()

    def passed(self, passing: Any) -> bool:
        """Do it, if it is its turn; tell whether a connection is to break."""
        if isinstance(passing, OnLink) and not (self._hosts is None or passing.host in self._hosts):
            return False
        with self._lock:
            if self._after:
                self._after -= 1
                return False
            if self._times is not None and self.fired >= self._times:
                return False
            self.fired += 1
        if isinstance(passing, dict):
            self._happen_at_start(passing)
            return False
        return _ACTIONS[self.action](self, passing)

    def is_cut(self, passing: OnLink) -> bool:
        """Tell whether it keeps the link to this host without a connection."""
        return time.monotonic() < self._until.get(passing.host, 0.0)

    def kill(self, _: object) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    def stop(self, _: object) -> bool:
        with _woken_after(self.seconds) if self.seconds else contextlib.nullcontext():
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread stops first
        return False

    def slow(self, _: object) -> bool:
        time.sleep(self.seconds)
        return False

    def raise_(self, _: object) -> bool:
        assert self._error is not None
        raise self._error()

    def cut(self, passing: OnLink) -> bool:
        self._until[passing.host] = time.monotonic() + self.seconds
        return True

    def corrupt(self, passing: OnLink) -> bool:
        if passing.data:
            passing.data[-1] ^= 1
        return False

    def _happen_at_start(self, rank: Mapping[str, Any]) -> None:
        # in an agent: to the rank that this boot record is for
        rank["env"][AT_START] = json.dumps([self.action, self.seconds])


_ACTIONS: Final[dict[str, Callable[[ArmedFault, Any], bool]]] = {
    "kill": ArmedFault.kill,
    "stop": ArmedFault.stop,
    "slow": ArmedFault.slow,
    "raise_": ArmedFault.raise_,
    "cut": ArmedFault.cut,
    "corrupt": ArmedFault.corrupt,
}


class Faults:
    """Those of this process."""

    def __init__(self) -> None:
        self._by_number: dict[tuple[int, int], ArmedFault] = {}

    def arm(self, number: tuple[int, int], fault: ArmedFault) -> None:
        """Have it happen from now on. `number`: of a process, and that process's own."""
        self._by_number[number] = fault
        armed[fault.at] = functools.partial(self._reached, fault.at)
        if fault.action == "cut":
            armed.setdefault("link.connect", functools.partial(self._reached, "link.connect"))

    def count(self, number: tuple[int, int], *, remove: bool) -> int:
        """Return how often it has happened: 0 where there is no such fault any more."""
        found = self._by_number.get(number)
        if found is None:
            return 0
        if remove:
            del self._by_number[number]
            if not self._by_number:
                armed.clear()
        return found.fired

    def _reached(self, at: str, passing: Any) -> bool:
        faults = list(self._by_number.values())
        breaks = [each.passed(passing) for each in faults if each.at == at]  # each counts
        if at == "link.connect":
            breaks += [each.is_cut(passing) for each in faults]
        return any(breaks)


faults: Final = Faults()


def happen_at_start() -> None:
    """Let happen at `rank.started` what this process was started with."""
    text = os.environ.pop(AT_START, None)
    if text is not None:
        action, seconds = json.loads(text)
        faults.arm((0, 0), ArmedFault("rank.started", action, seconds))


class _Event(ctypes.Structure):
    """`struct sigevent`."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


@contextlib.contextmanager
def _woken_after(seconds: float) -> Iterator[None]:
    # By timers of the kernel's: they tick while this process is stopped, and nobody else has to
    # live. The first one may come before the stop, on a busy machine, and does nothing then.
    library = ctypes.CDLL(None, use_errno=True)
    timers = [_continuing_timer(library, seconds + late_s) for late_s in (0.0, _LATE_S)]
    yield
    for each in timers:
        library.timer_delete(each)


def _continuing_timer(library: ctypes.CDLL, seconds: float) -> ctypes.c_void_p:
    timer, event = ctypes.c_void_p(), _Event(None, signal.SIGCONT, _SIGEV_SIGNAL)
    due = (ctypes.c_long * 4)(0, 0, int(seconds), max(1, int(seconds % 1 * 1e9)))
    failed = library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
    if failed or library.timer_settime(timer, 0, due, None):
        raise OSError(ctypes.get_errno(), "a timer that continues this process")
    return timer
