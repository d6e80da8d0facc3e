"""Waits for other ranks that an interrupt ends, and that know whose time they count.

Rules of the file: what is done at once costs one call more than before. A wait of gloo's is cut
into slices, between which Python looks for signals. A wait that would break the group when it is
cut (send, recv) is not: an interrupt breaks the group (`abort_groups`). One that does not even see
that goes to a thread of its own. What was left before it had ended is remembered: the group is of
no use while it is not done.
"""

from __future__ import annotations

import datetime as dt
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final, NamedTuple

from monarch_nb.worker.groups.c10d import Backend, Group, Work, backends_of, is_gloo, load

SLICE_S: Final = 0.05
SLICE: Final = dt.timedelta(seconds=SLICE_S)
SLICED: Final = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 15})
"""Types of works that gloo can wait for again after a time-out: all but send, recv and those that
are made of several. (Numbers of `c10d::OpType`.)"""
ANY_SOURCE: Final = 14
"""The type of a `recv` from anybody."""
MOMENT_S: Final = 0.2
"""How much later than on its peers a collective may end on this rank."""
ABORT_TAG: Final = 0x6D6E62  # of a message that nobody sends
ABORT_AFTER: Final = dt.timedelta(milliseconds=1)
_ENGINE: Final = (
    "torch/autograd/graph.py",
    "torch/nn/parallel/distributed.py",
    "torch/_ops.py",
)
"""Where the main thread is when C++ waits: in a backward pass, in the first forward pass after the
first backward pass of DDP, in a functional collective."""
REGROUP: Final = "Type: %mesh regroup"


class Limit:
    """How long to wait. `paused(seconds)` says for how long, in the last `seconds`, a debugger
    paused a member of the mesh: that does not count. It is asked when the time is over. `ended()`
    says why the wait is of no use any more; empty: it is."""

    def __init__(
        self,
        what: str,
        timeout: dt.timedelta | None,
        paused: Callable[[float], float],
        ended: Callable[[], str],
    ) -> None:
        self._what = what
        self._timeout = timeout
        self._paused = paused
        self._ended = ended
        self._started_s = time.monotonic()
        self._paused_s = 0.0

    def check(self) -> None:
        """Raise `RuntimeError`, as torch does, when the time is over, or the wait was ended."""
        if why := self._ended():
            raise RuntimeError(f"{self._what}: {why}")
        if self._timeout is None:
            return
        limit_s, waited_s = self._timeout.total_seconds(), time.monotonic() - self._started_s
        if waited_s - self._paused_s < limit_s:
            return
        self._paused_s = self._paused(waited_s)
        if waited_s - self._paused_s >= limit_s:
            raise RuntimeError(
                f"{self._what} timed out: not all ranks came to it within {self._timeout}. "
                "%mesh collectives shows who is where"
            )


class Left(NamedTuple):
    """An operation that was left before it had ended; `group` by name, empty: unknown."""

    what: str
    group: str
    work: Work
    is_done: Callable[[], bool]


class Abandoned:
    """What was left before it had ended: by an interrupt, or when its time was over.

    `hold` keeps all groups alive: letting go of the last reference to one joins its threads.
    `tell` is called when something was left.
    """

    def __init__(self, hold: Callable[[], None], tell: Callable[[], None] = lambda: None) -> None:
        self._hold = hold
        self._tell = tell
        self._left: list[Left] = []
        self._refused: dict[str, str] = {}
        """Why a group is of no use, by its name."""
        self._broken: dict[str, str] = {}
        """By group, what was broken to end it; its connections are closed."""

    def __bool__(self) -> bool:
        return bool(self._left or self._broken or self._refused) and (
            bool(self._broken or self._refused) or self.is_under_way()
        )

    def is_under_way(self) -> bool:
        self._left = [each for each in self._left if not each.is_done()]
        return bool(self._left)

    def broke(self, what: str, groups: Iterable[str]) -> None:
        self._broken.update(dict.fromkeys(groups, what))
        self._hold()
        self._tell()

    def add(self, what: str, group: str, work: Work, is_done: Callable[[], bool]) -> None:
        self._left.append(Left(what, group, work, is_done))
        self._hold()
        self._tell()

    def refuse(self, groups: Iterable[str], why: str) -> None:
        """Let nobody use these groups any more: ranks are out of step in them."""
        self._refused.update(dict.fromkeys(groups, why))

    def left_in(self, group: str) -> str:
        """Return what was left in a group and has not ended since; empty: nothing."""
        self.is_under_way()
        found = [each.what for each in self._left if each.group in {"", group}]
        return self._broken.get(group) or (found[0] if found else "")

    def check(self, work: object, group: str) -> None:
        """Raise `RuntimeError` where the group is of no use; a work may be waited for again.

        What has ended on the peers ends here a moment later: that is waited for. `group` is empty
        where it is unknown: then none may be of no use.
        """
        if any(work is each.work for each in self._left):
            return
        if why := self._why_refused(group):
            raise RuntimeError(f"the process group cannot be used any more: {why}. {REGROUP}")
        if what := self._still_left_in(group):
            raise RuntimeError(
                "the process group cannot be used any more: this rank has left its last "
                f"{what} before it had ended. {REGROUP}"
            )

    def forget(self, group: str | None = None) -> None:
        """Forget what was left in a group, or in all."""
        if group is None:
            self._left.clear()
            self._broken.clear()
            self._refused.clear()
            return
        self._left = [each for each in self._left if each.group != group]
        self._broken.pop(group, None)
        self._refused.pop(group, None)

    def _why_refused(self, group: str) -> str:
        if not group:
            return next(iter(self._refused.values()), "")
        return self._refused.get(group, "")

    def _still_left_in(self, group: str) -> str:
        deadline = time.monotonic() + MOMENT_S
        while what := self._left_in_any(group):
            if self._broken or time.monotonic() >= deadline:
                break
            time.sleep(0.002)
        return what

    def _left_in_any(self, group: str) -> str:
        if group:
            return self.left_in(group)
        self.is_under_way()
        return next(iter(self._broken.values()), self._left[0].what if self._left else "")


def wait_in_slices(
    wait: Callable[[dt.timedelta], object], is_done: Callable[[], bool], limit: Callable[[], Limit]
) -> object:
    """Wait for a work that can be waited for again. `limit` is made when it takes longer."""
    ended = _slice(wait, is_done)
    counting = None
    while ended is None:  # out of all handlers: an interrupt comes up without a context
        counting = counting or limit()
        counting.check()
        ended = _slice(wait, is_done)
    return ended[0]


def _slice(
    wait: Callable[[dt.timedelta], object], is_done: Callable[[], bool]
) -> tuple[object] | None:
    try:
        return (wait(SLICE),)
    except RuntimeError:
        pass
    return (wait(SLICE),) if is_done() else None  # its own error, or it has ended just now


class ThreadedWait:
    """Something that blocks in C++, on a thread of its own."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._done = threading.Lock()
        self._done.acquire()
        self._is_done = False
        self._value: object = None
        self._error: BaseException | None = None
        thread = _idle.pop() if _idle else _Thread()
        thread.jobs.put(self)

    def is_done(self) -> bool:
        return self._is_done

    def wait(self, limit: Callable[[], Limit]) -> object:
        if not self._done.acquire(timeout=SLICE_S):
            counting = limit()
            while not self._done.acquire(timeout=SLICE_S):
                counting.check()
        if self._error is not None:
            raise self._error
        return self._value

    def run(self) -> None:
        try:
            self._value = self._action()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error.with_traceback(None)
        self._is_done = True

    def tell(self) -> None:
        self._done.release()


class _Thread:
    """Runs what may block for ever; it is idle again when that has ended."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[ThreadedWait] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="monarch-wait", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job = self.jobs.get()
            job.run()
            _idle.append(self)
            job.tell()
            del job


_idle: Final[list[_Thread]] = []
os.register_at_fork(after_in_child=_idle.clear)


def abort_groups(groups: Iterable[Group]) -> None:
    """Break those of gloo that have peers, on purpose. Returns at once. Any thread.

    A time-out of a `recv` closes all connections of its group: every operation of this process in
    it fails at once, and so do those of its peers. So a `recv` that nobody answers, for a
    millisecond, ends a wait in C++ that no signal reaches. Done only after an interrupt, and when a
    group is left for good.
    """
    for group in groups:
        for backend in filter(is_gloo, backends_of(group)):
            others = (backend.rank() + 1 + each for each in range(backend.size() - 1))
            peers = (each % backend.size() for each in others)
            next((peer for peer in peers if _breaks(backend, peer)), None)


def _breaks(backend: Backend, peer: int) -> bool:
    # whether waiting for this peer has closed all connections; that to it may be closed already,
    # and then nothing is closed by it
    try:
        work = backend.recv([load("torch").empty(1)], peer, ABORT_TAG)
        getattr(type(work).wait, "__wrapped__", type(work).wait)(work, ABORT_AFTER)
    except Exception as error:  # noqa: BLE001  PyTorch raises several
        return any(word in str(error).lower() for word in ("timed out", "timeout"))
    return False


def backward_frame() -> FrameType | None:
    """Return where the main thread is in a backward pass; None: it is elsewhere."""
    frame = _main_frame()
    return frame if frame is not None and frame.f_code.co_filename.endswith(_ENGINE) else None


def is_in(frame: FrameType) -> bool:
    """Tell whether the main thread has not come back from there."""
    found = _main_frame()
    while found is not None and found is not frame:
        found = found.f_back
    return found is not None


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)
