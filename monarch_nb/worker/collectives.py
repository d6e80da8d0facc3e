"""Where the rank waits for others in a collective of `torch.distributed`: told to the board, and
ended by an interrupt.

Every collective that is waited for in Python ends in `Work.wait`, however the user has imported it
and whatever the group is; so that method is the one that is changed, when the first group is made.
Replacing the functions themselves would hide them from `torch.compile`. What waits in C++ (the
reducer of DDP, a stream of CUDA) is not seen, and no interrupt ends it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from monarch_nb.worker import waits
from monarch_nb.worker.boardwriter import BoardWriter
from monarch_nb.worker.group_facts import GroupFacts
from monarch_nb.worker.waits import Aside, Left, Limit

_HOME: Final = "torch.distributed.distributed_c10d"
_THROUGH: Final = {_HOME, "torch.distributed.c10d_logger"}  # whose wrapper each function has
_NONE: Final = dt.timedelta(0)  # PyTorch's word for no timeout

_boards: Final[list[BoardWriter]] = []  # of this rank, once it has one
facts: Final = GroupFacts()
held: Final[list[Any]] = []
"""Groups that are never let go of: something of theirs that has not ended would be waited for."""


def _hold_all() -> None:
    held.extend(group for group in _c10d()._world.pg_map if group not in held)


left: Final = Left(_hold_all)


def _never(_: float) -> float:
    return 0.0


_paused: Final[list[Callable[[float], float]]] = [_never]


def install(board: BoardWriter, paused: Callable[[float], float] = _never) -> None:
    """From the first process group on, waits of this process are told to `board`.

    `paused(seconds)`: for how long, in the last `seconds`, a debugger held a rank of the mesh.
    """
    _boards[:] = [board]
    _paused[:] = [paused]
    if "torch" not in sys.modules:
        return
    c10d: Any = _c10d()
    register = c10d._register_process_group

    def told(name: str, group: Any) -> None:
        _watch(importlib.import_module("torch._C._distributed_c10d"))
        facts.add(name, group)
        if c10d._world.default_pg is None:
            left.forget()  # the first of new ones
        register(name, group)

    c10d._register_process_group = told


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Inside the block this rank waits for others."""
    waited = [(board, board.collective(what)) for board in _boards]
    try:
        yield
    finally:
        for board, each in waited:
            board.resume(each)


def _c10d() -> Any:
    return importlib.import_module(_HOME)


def _watch(module: Any) -> None:
    _replace(module.Work, "wait", _wait)
    group = module.ProcessGroup
    if hasattr(group, "monitored_barrier"):
        _replace(group, "monitored_barrier", _call_aside)


def _replace(cls: Any, method: str, patient: Callable[..., Any]) -> None:
    original = getattr(cls, method)
    if hasattr(original, "__wrapped__"):
        return
    [board] = _boards

    # a subclass in Python inherits this: pybind11 tells that it is no override of the subclass by
    # the names of function and first argument
    def wait(self: Any, *args: Any, **options: Any) -> Any:
        waited = board.collective(_name(sys._getframe(1)))
        try:
            return patient(original, cls, self, *args, **options)
        finally:
            board.resume(waited)

    wait.__code__ = wait.__code__.replace(co_name=method)
    setattr(cls, method, functools.wraps(original)(wait))


def _wait(original: Any, cls: Any, work: Any, timeout: dt.timedelta = _NONE) -> Any:
    if type(work) is not cls or not (facts.only_gloo or _is_on_cpu(sys._getframe(2))):
        return original(work, timeout)
    left.check(work)
    limit = functools.partial(_limit, sys._getframe(2), timeout)
    if work._get_op_type() in waits.SLICED:
        is_done = work.is_completed
        wait = functools.partial(original, work)
        return _left_if_cut(work, is_done, lambda: waits.in_slices(wait, is_done, limit))
    aside = Aside(lambda: original(work))
    return _left_if_cut(work, aside.is_done, lambda: aside.wait(limit))


def _call_aside(original: Any, _: Any, group: Any, *args: Any, **options: Any) -> Any:
    """A call that waits by itself, and counts its own time."""
    if not facts.only_gloo:
        return original(group, *args, **options)
    left.check(group)
    aside = Aside(lambda: original(group, *args, **options))
    what = _name(sys._getframe(2))
    return _left_if_cut(group, aside.is_done, lambda: aside.wait(lambda: Limit(what, None, _never)))


def _left_if_cut(work: Any, is_done: Callable[[], bool], wait: Callable[[], Any]) -> Any:
    try:
        return wait()
    except BaseException:
        if not is_done():
            left.add(_name(sys._getframe(3)), work, is_done)
        raise


def _limit(frame: FrameType | None, timeout: dt.timedelta) -> Limit:
    """What the caller has given, else the timeout of the group."""
    name = getattr(_group_of(frame), "group_name", "")
    return Limit(_name(frame), timeout or facts.timeout(name), _paused[0])


def _group_of(frame: FrameType | None) -> Any:
    """The group of the function of PyTorch's that waits, if one does."""
    while frame is not None and frame.f_globals.get("__name__") in _THROUGH:
        if (group := frame.f_locals.get("group")) is not None:
            return group
        frame = frame.f_back
    return None


def _is_on_cpu(frame: FrameType | None) -> bool:
    """Whether a function of PyTorch's waits for tensors of the CPU, where gloo is the backend."""
    if frame is None or frame.f_globals.get("__name__") != _HOME:
        return False
    names = ("tensor", "output", "input", "tensor_list")
    values: list[Any] = [frame.f_locals.get(name) for name in names]
    tensors: list[Any] = [each[0] if isinstance(each, list) and each else each for each in values]
    devices = {each.device.type for each in tensors if hasattr(each, "device")}
    return devices == {"cpu"}


def _name(frame: FrameType | None) -> str:
    """The collective that the user has called; of a `Work`, only that it is waited for."""
    name = "wait"
    while frame is not None and (home := frame.f_globals.get("__name__")) in _THROUGH:
        if home == _HOME:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
