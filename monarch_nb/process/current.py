"""The one runtime of this process: set once by whoever starts it, found by what users call.

A rank sets it while it boots. Elsewhere the first use starts the client. What is made here with
the runtime at hand is given what it needs; only what a user calls, or a message brings, looks here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from monarch_nb import late
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.errors import BrokenError

if TYPE_CHECKING:
    from monarch_nb.process.instance import Instance
    from monarch_nb.process.process import Proc

T = TypeVar("T")


class Runtime(Protocol):
    """What every process of a mesh has. `parts`: what the boxes above give it, by class."""

    @property
    def proc(self) -> Proc: ...
    @property
    def root(self) -> Instance: ...
    @property
    def parts(self) -> Mapping[type, Any]: ...
    @property
    def at_close(self) -> list[Callable[[], None]]: ...


_lock = threading.RLock()


class _Slot:
    runtime: Runtime | None = None
    is_fork_of_rank = False


_slot = _Slot()


def install(runtime: Runtime | None) -> None:
    _slot.runtime = runtime


def running() -> Runtime | None:
    return _slot.runtime


def runtime() -> Runtime:
    """Return the runtime; in a process that is no rank, the client is started at first use."""
    found = _slot.runtime
    if found is not None:
        return found
    if _slot.is_fork_of_rank:
        raise BrokenError(
            "this process was forked from a rank of a mesh and is none itself; "
            "use the mesh in the rank"
        )
    with _lock:
        if _slot.runtime is None:
            late.load(late.CLIENT).start()
    found = _slot.runtime
    assert found is not None
    return found


def proc() -> Proc:
    return runtime().proc


def part(kind: type[T]) -> T:
    found: T = runtime().parts[kind]
    return found


def flush() -> None:
    """Send what is held back: the calling thread is about to wait."""
    if (found := _slot.runtime) is not None:
        found.proc.links.flush()


def _forget_after_fork() -> None:
    # A forked child is no member: its parent's sockets and threads are not its own
    found, _slot.runtime = _slot.runtime, None
    if found is not None and found.proc.id != found.proc.controller:
        _slot.is_fork_of_rank = True


os.register_at_fork(after_in_child=_forget_after_fork)


def end_fork(error: BaseException | None) -> NoReturn:
    """End a child that the user's code has forked and that came back into ours, like a program."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        print(*ErrorRecord.from_exception(error).format(), sep="\n", file=sys.__stderr__)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
