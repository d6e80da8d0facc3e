"""On the board: where the rank waits for others in a collective of `torch.distributed`.

Every collective that is waited for in Python ends in `Work.wait`, however the user has imported it
and whatever the group is; so that method is the one that is changed, when the first group is made.
Replacing the functions themselves would hide them from `torch.compile`. What waits in C++ (the
reducer of DDP, a stream of CUDA) is not seen.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from monarch_nb.worker.boardwriter import BoardWriter

_HOME: Final = "torch.distributed.distributed_c10d"
_THROUGH: Final = {_HOME, "torch.distributed.c10d_logger"}  # whose wrapper each function has
_WAITS: Final = (("Work", "wait"), ("ProcessGroup", "monitored_barrier"))

_boards: Final[list[BoardWriter]] = []  # of this rank, once it has one


def install(board: BoardWriter) -> None:
    """From the first process group on, waits of this process are told to `board`."""
    _boards[:] = [board]
    if "torch" not in sys.modules:
        return
    c10d: Any = importlib.import_module(_HOME)
    register = c10d._register_process_group

    def first(name: str, group: Any) -> None:
        if c10d._register_process_group is first:
            c10d._register_process_group = register
        _watch(importlib.import_module("torch._C._distributed_c10d"))
        register(name, group)

    c10d._register_process_group = first


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Inside the block this rank waits for others."""
    waited = [(board, board.collective(what)) for board in _boards]
    try:
        yield
    finally:
        for board, each in waited:
            board.resume(each)


def _watch(module: Any) -> None:
    for name, method in _WAITS:
        cls = getattr(module, name, None)
        original = getattr(cls, method, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(cls, method, _told(original))


def _told(original: Any) -> Any:
    [board] = _boards

    # a subclass in Python inherits this: pybind11 tells that it is no override of the subclass by
    # the names of function and first argument
    def wait(self: Any, *args: Any, **options: Any) -> Any:
        waited = board.collective(_name(sys._getframe(1)))
        try:
            return original(self, *args, **options)
        finally:
            board.resume(waited)

    wait.__code__ = wait.__code__.replace(co_name=original.__name__)
    return functools.wraps(original)(wait)


def _name(frame: FrameType | None) -> str:
    """The collective that the user has called; of a `Work`, only that it is waited for."""
    name = "wait"
    while frame is not None and (home := frame.f_globals.get("__name__")) in _THROUGH:
        if home == _HOME:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
