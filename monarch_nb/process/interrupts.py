"""How an interrupt reaches the one call it is meant for, and no other.

Rules: an interrupt that finds its call queued cancels it; one that finds it running raises a
KeyboardInterrupt in the thread that runs it. It is aimed under a lock, and taken back under the
same lock when the call ends before it hits. So between calls, and while answers are sent, no
interrupt can come up.

A SIGINT that comes between Python's last look and a system call that blocks is not noticed before
that call ends. Another signal, a wakeup that does nothing, ends the call, and Python looks.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

R = TypeVar("R")
Key = tuple[int, int]  # (caller's process, its reply port): one call
_REMEMBERED: Final = 1_000_000  # cancelled calls that have not arrived: as many as may be queued
WAKEUP: Final = signal.SIGRTMIN + 1
PAUSES_S: Final = (0.005, 0.015, 0.06, 0.2)


class Interrupts:
    """Of one actor. `signal_main`, for one on the main thread, makes a SIGINT come up there."""

    def __init__(self, signal_main: Callable[[], None] | None) -> None:
        self.running: Key | None = None
        self._signal_main = signal_main
        self._active: set[Key] = set()
        self._cancelled: dict[Key, None] = {}
        self._meant: set[Key] = set()
        self._signalled = False
        self._spared: Key | None = None  # the call in which a piece of ours runs
        self._held_back = False
        self._thread = 0
        self._lock = threading.Lock()

    @property
    def thread(self) -> int:
        return self._thread

    # the inbox thread

    def interrupt(self, key: Key) -> bool:
        """Cancel or interrupt a call. True when it has begun."""
        self._cancelled[key] = None
        if len(self._cancelled) > _REMEMBERED:
            self._cancelled.pop(next(iter(self._cancelled)), None)
        if key not in self._active:
            return False
        self._cancelled.pop(key, None)
        self._meant.add(key)
        with self._lock:
            if self.running == key:
                self._signalled = True
                self._signal()
            elif self._spared == key:
                self._held_back = True
        return True

    def _signal(self) -> None:
        if self._signal_main is not None:
            self._signal_main()
        else:
            raise_in_thread(self._thread, KeyboardInterrupt)

    # the actor's thread

    def begin(self, key: Key) -> bool:
        """Take a call from the queue. False when it has been cancelled."""
        self._active.add(key)
        if self._cancelled and self._cancelled.pop(key, 0) is None:
            self._active.discard(key)
            self._meant.discard(key)
            return False
        return True

    def enter(self, key: Key) -> None:
        """Let a KeyboardInterrupt come up from here on. Raises it if it came since `begin`."""
        self._thread = threading.get_ident()
        self.running = key
        if key in self._meant:
            raise KeyboardInterrupt

    def resume(self, outer: Key | None) -> None:
        """Let interrupts reach the call again that has waited while another ran inside it."""
        self.running = outer

    def leave(self) -> None:
        """Let none come up from here on. May itself be interrupted: to be called `calmly`."""
        with self._lock:
            self.running = None
            self._let_pass()

    def finish(self, key: Key) -> bool:
        """Leave, and end the call. Tells whether its caller has interrupted it."""
        self.leave()
        self._active.discard(key)
        meant = key in self._meant
        self._meant.discard(key)
        return meant

    def during(self, key: Key, action: Callable[[], R]) -> R:
        """Run a piece of a call's code; a KeyboardInterrupt may come up in it, and not after it."""
        try:
            self.enter(key)
            return action()
        finally:
            calmly(self.leave)

    def undisturbed(self, action: Callable[[], None]) -> None:
        """Do a piece of our work in the middle of a call: an interrupt comes up behind it."""
        came = False
        while self.running is not None:
            try:
                self._spare()
            except KeyboardInterrupt:  # it came up before it could be held back
                came = True
        try:
            action()
        finally:
            came = self._spare_no_more() or came
        if came:
            raise KeyboardInterrupt

    def _spare(self) -> None:
        with self._lock:
            self._spared, self.running = self.running, None
            self._let_pass()

    def _spare_no_more(self) -> bool:
        with self._lock:
            came, self._held_back = self._held_back, False
            self.running, self._spared = self._spared, None
        return came

    def _let_pass(self) -> None:
        # Whoever held the lock before has sent what it aimed. It hits here, or has hit before.
        if not self._signalled:
            return
        if self._signal_main is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, ())  # runs the handlers of pending signals
        else:
            take_back()
        self._signalled = False

    def hit(self) -> bool | None:
        """Tell SIGINT's handler: True: raise; False: it came too late; None: it is not ours."""
        if not self._signalled:
            return None
        self._signalled = False
        self._held_back = self.running is None and self._spared is not None
        return self.running is not None


def calmly(action: Callable[[], R]) -> R:
    while True:
        try:
            return action()
        except KeyboardInterrupt:  # the very one that is being taken back
            continue


class Steps:
    """An awaitable whose every step may be interrupted; the loop's own code in between may not."""

    def __init__(self, interrupts: Interrupts, key: Key, awaitable: Any) -> None:
        self._interrupts = interrupts
        self._key = key
        self._inner = awaitable

    def __await__(self) -> Generator[object, object, Any]:
        inner = self._inner.__await__()
        resume: Callable[[], object] = lambda: next(inner)  # noqa: E731  the first of several
        while True:
            try:
                self._interrupts.enter(self._key)
                wanted = resume()
            except StopIteration as end:
                return end.value
            finally:
                calmly(self._interrupts.leave)
            resume = yield from _pass_on(inner, wanted)


def _pass_on(
    inner: Generator[object, object, Any], wanted: object
) -> Generator[object, object, Callable[[], object]]:
    try:
        value = yield wanted
    except BaseException as error:  # noqa: BLE001  thrown in by the loop, for the code to handle
        thrown = error
        return lambda: inner.throw(thrown)
    if value is None:
        return lambda: next(inner)
    return lambda: inner.send(value)


class _TakenBack(BaseException):
    """Comes up, and is caught, where another exception would have."""


def raise_in_thread(thread_id: int, kind: type[BaseException]) -> None:
    """Make `kind` come up in a thread at its next bytecode (it does not end a C call)."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(kind))


def take_back() -> None:
    """Keep what was raised in this thread from coming up, if it has not yet.

    Another takes its place and comes up here. Were there none in its place, which Python's API
    allows, each thread of the process would look for it from then on, wherever it looks for
    signals; and Python 3.11 does not get beyond such a look in a function that a debugger traces.
    """
    try:
        raise_in_thread(threading.get_ident(), _TakenBack)
        while True:  # Python looks here, at the latest
            pass
    except _TakenBack:
        return


def allow_wakeups() -> None:
    """Let the main thread be woken. To be called there."""
    if signal.getsignal(WAKEUP) == signal.SIG_DFL:
        signal.signal(WAKEUP, lambda *_: None)


def interrupt_main(*ends_wait: Callable[[], bool]) -> None:
    """Make a SIGINT come up there, and return at once. Any thread.

    Each of `ends_wait` ends a wait that sees no signal, if there is one, and says whether it did.
    """
    main = threading.main_thread().ident or 0
    signal.pthread_kill(main, signal.SIGINT)
    if signal.getsignal(WAKEUP) == signal.SIG_DFL:  # a wakeup would end the process
        return
    waking = threading.Thread(
        target=_wake, args=(main, ends_wait), name="monarch-wakeup", daemon=True
    )
    vars(waking).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    waking.start()


def _wake(main: int, ends_wait: Iterable[Callable[[], bool]]) -> None:
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        signal.pthread_kill(main, WAKEUP)
        if any(ends() for ends in ends_wait):
            return
