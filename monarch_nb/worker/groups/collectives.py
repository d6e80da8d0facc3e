"""Where the rank waits for others in a collective of `torch.distributed`: told to the board, and
ended by an interrupt.

Every collective that is waited for in Python ends in `Work.wait`, however the user has imported it
and whatever the group is; so that method is the one that is changed, when the first group is made.
Replacing the functions themselves would hide them from `torch.compile`. What waits in C++ (the
reducer of DDP, a stream of CUDA) is not seen; `breaking.py` ends what is of gloo.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.worker.groups import abort, waits
from monarch_nb.worker.groups.peer_deaths import Losses
from monarch_nb.worker.groups.timeouts import GroupFacts
from monarch_nb.worker.groups.waits import Aside, Left, Limit
from monarch_nb.worker.status.board_writer import BoardWriter

_HOME: Final = "torch.distributed.distributed_c10d"
_THROUGH: Final = {_HOME, "torch.distributed.c10d_logger"}  # whose wrapper each function has
_BROKEN: Final = ("onnection", "pair closure", "ead error", "rite error", "cannot be used any more")
"""Of what gloo says when a peer is gone, and of what is said of a group that was left."""
_NONE: Final = dt.timedelta(0)  # PyTorch's word for no timeout

_boards: Final[list[BoardWriter]] = []  # of this rank, once it has one
facts: Final = GroupFacts()
SETTLE_S: Final = 1.0
uncut: Final[list[str]] = []
"""What the main thread waits in where no signal is seen."""
held: Final[list[Any]] = []
"""Groups that are never let go of: something of theirs that has not ended would be waited for."""


def _hold_all() -> None:
    held.extend(group for group in _c10d()._world.pg_map if group not in held)


left: Final = Left(_hold_all)


def _break_lost() -> None:
    """Nobody is to wait in a group that has lost a member: gloo tells its neighbours only."""
    for group in list(_c10d()._world.pg_map):
        if group not in held and lost.among(_processes_of(group)):
            held.append(group)
            abort.break_groups([group])


lost: Final = Losses(_break_lost)
met: Final[list[Callable[[], dict[int, str]]]] = []
"""Tells the processes of the ranks that this one has met, once there is one."""


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
        if c10d._world.default_pg is None and len(c10d._world.pg_map) <= 1:
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
        _replace(group, "monitored_barrier", _call)


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
        except RuntimeError as error:
            _explain(sys._getframe(1), error)
            raise
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
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and work._get_op_type() != waits.ANY_SOURCE:
        return _uncut(lambda: original(work, timeout))
    aside = Aside(lambda: original(work))
    return _left_if_cut(work, aside.is_done, lambda: aside.wait(limit))


def _call(original: Any, _: Any, group: Any, *args: Any, **options: Any) -> Any:
    """A call that waits by itself, and counts its own time."""
    if not facts.only_gloo:
        return original(group, *args, **options)
    left.check(group)
    return _uncut(lambda: original(group, *args, **options))


def _uncut(wait: Callable[[], Any]) -> Any:
    """A wait that no signal reaches: `interrupted` ends it, if it is the main thread's."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        uncut.append(_name(sys._getframe(3)))
    try:
        return wait()
    except RuntimeError as raised:
        error = raised
    finally:
        if is_main:
            uncut.pop()
    raise error  # out of the handler: an interrupt that has ended it comes up before, and alone


def interrupted() -> bool:
    """The main thread was interrupted a moment ago: end what it waits for without seeing that.

    Whether there was something. Any other thread.
    """
    if _HOME not in sys.modules or not facts.only_gloo:
        return False
    what = uncut[-1] if uncut else "backward pass" if abort.is_stuck_in_backward() else ""
    if what:
        left.broke(what)
        abort.break_groups(list(_c10d()._world.pg_map))
    return bool(what)


def settle() -> None:
    """Let nothing of the groups that there are now be under way: nobody will wait for it."""
    groups = list(_c10d()._world.pg_map)
    abort.break_groups(groups)
    deadline = time.monotonic() + SETTLE_S
    while left.is_under_way() and time.monotonic() < deadline:
        time.sleep(0.005)
    if not left.is_under_way():
        held[:] = [each for each in held if all(each is not group for group in groups)]
        left.forget()


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


def _processes_of(group: Any) -> dict[int, str]:
    """By rank of the mesh; of a group that is unknown, or None, all."""
    processes = met[-1]() if met else {}
    ranks = None if group is None else _c10d()._world.pg_group_ranks.get(group)
    return dict(processes) if ranks is None else {r: p for r, p in processes.items() if r in ranks}


def _explain(frame: FrameType | None, error: RuntimeError) -> None:
    """Raises `RuntimeError` that names the members which have died, or says that the group is an
    old one, if that may be the cause."""
    if not any(word in str(error) for word in _BROKEN):
        return
    group = _group_of(frame)
    if group in held and group not in _c10d()._world.pg_map:
        raise RuntimeError(
            f"{_name(frame)}: this process group is of no use any more, the mesh was healed or "
            "regrouped since. Ask for it again: mesh.group(...)"
        ) from None
    if ranks := lost.soon_among(_processes_of(group)):
        who = f"{rank_words(ranks)} {'has' if len(ranks) == 1 else 'have'} died"
        raise RuntimeError(
            f"{_name(frame)}: {who}, so this process group is of no use any more. Type: %mesh heal"
        ) from None


def _name(frame: FrameType | None) -> str:
    """The collective that the user has called; of a `Work`, only that it is waited for."""
    name = "wait"
    while frame is not None and (home := frame.f_globals.get("__name__")) in _THROUGH:
        if home == _HOME:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
