"""Where the rank waits for others in a collective of `torch.distributed`: told to the board, and
ended by an interrupt.

Every collective that is waited for in Python ends in `Work.wait`, however the user has imported it
and whatever the group is; so that method is the one that is changed, when the first group is made.
Replacing the functions themselves would hide them from `torch.compile`. What waits in C++ (the
reducer of DDP, a stream of CUDA) is not seen; `abort_groups` ends what is of gloo.
"""

from __future__ import annotations

import datetime as dt
import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.worker.groups import c10d, waits
from monarch_nb.worker.groups.c10d import HOME, Group, Work
from monarch_nb.worker.groups.process_groups import ProcessGroups
from monarch_nb.worker.groups.waits import Limit, ThreadedWait

_THROUGH: Final = {HOME, "torch.distributed.c10d_logger"}  # whose wrapper each function has
_BROKEN: Final = ("onnection", "pair closure", "ead error", "rite error", "cannot be used any more")
"""Of what gloo says when a peer is gone, and of what is said of a group that was left."""
_NONE: Final = dt.timedelta(0)  # PyTorch's word for no timeout

Original = Callable[..., object]


class CollectiveWaits:
    """What stands in the place of PyTorch's waits, once `install` was called."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups

    def install(self) -> None:
        """Replace waits from the first process group on. Nothing where torch is not loaded."""
        if "torch" not in sys.modules:
            return
        home, groups = c10d.load(HOME), self._groups
        register = home._register_process_group

        def registered(name: str, group: Group) -> None:
            self._replace_waits()
            groups.timeouts.add(name, group)
            if c10d.world().default_pg is None and len(c10d.world().pg_map) <= 1:
                groups.abandoned.forget()  # the first of new ones
            register(name, group)

        vars(home)["_register_process_group"] = registered

    def _replace_waits(self) -> None:
        bindings = c10d.load("torch._C._distributed_c10d")
        self._replace(bindings.Work, "wait", self._wait)
        if hasattr(bindings.ProcessGroup, "monitored_barrier"):
            self._replace(bindings.ProcessGroup, "monitored_barrier", self._call)

    def _replace(self, cls: type, method: str, replacement: Callable[..., object]) -> None:
        original: Original = getattr(cls, method)
        if hasattr(original, "__wrapped__"):
            return
        board, explain = self._groups.board, self._explain

        # a subclass in Python inherits this: pybind11 tells that it is no override of the subclass
        # by the names of function and first argument
        def wait(self: object, *args: object, **options: object) -> object:
            waited = board.collective(_name(sys._getframe(1)))
            try:
                return replacement(original, cls, self, *args, **options)
            except RuntimeError as error:
                explain(sys._getframe(1), error)
                raise
            finally:
                board.resume(waited)

        wait.__code__ = wait.__code__.replace(co_name=method)
        setattr(cls, method, functools.wraps(original)(wait))

    def _wait(
        self, original: Original, cls: type, work: Work, timeout: dt.timedelta = _NONE
    ) -> object:
        groups = self._groups
        if type(work) is not cls or not (groups.timeouts.only_gloo or _is_on_cpu(sys._getframe(2))):
            return original(work, timeout)
        groups.abandoned.check(work)
        limit = functools.partial(self._limit, sys._getframe(2), timeout)
        if work._get_op_type() in waits.SLICED:
            is_done = work.is_completed
            wait = functools.partial(original, work)
            return self._abandoned_if_cut(
                work, is_done, lambda: waits.wait_in_slices(wait, is_done, limit)
            )
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and work._get_op_type() != waits.ANY_SOURCE:
            return self._blocked(lambda: original(work, timeout))
        aside = ThreadedWait(lambda: original(work))
        return self._abandoned_if_cut(work, aside.is_done, lambda: aside.wait(limit))

    def _call(
        self, original: Original, _: type, group: Group, *args: object, **options: object
    ) -> object:
        if not self._groups.timeouts.only_gloo:
            return original(group, *args, **options)
        self._groups.abandoned.check(group)
        return self._blocked(lambda: original(group, *args, **options))

    def _blocked(self, wait: Callable[[], object]) -> object:
        # A wait that no signal reaches: `interrupted` ends it, if it is the main thread's
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._groups.blocked.append(_name(sys._getframe(3)))
        try:
            return wait()
        except RuntimeError as failed:
            error = failed
        finally:
            if is_main:
                self._groups.blocked.pop()
        raise error  # out of the handler: an interrupt that has ended it comes up before, and alone

    def _abandoned_if_cut(
        self, work: Work, is_done: Callable[[], bool], wait: Callable[[], object]
    ) -> object:
        try:
            return wait()
        except BaseException:
            if not is_done():
                self._groups.abandoned.add(_name(sys._getframe(3)), work, is_done)
            raise

    def _limit(self, frame: FrameType | None, timeout: dt.timedelta) -> Limit:
        # What the caller has given, else the timeout of the group
        name = getattr(_group_of(frame), "group_name", "")
        known = timeout or self._groups.timeouts.timeout(name)
        return Limit(_name(frame), known, self._groups.paused)

    def _explain(self, frame: FrameType | None, error: RuntimeError) -> None:
        """Raise `RuntimeError` that names the members which have died, or says that the group is
        an old one, if that may be the cause."""
        if not any(word in str(error) for word in _BROKEN):
            return
        groups, group = self._groups, _group_of(frame)
        if group is not None and groups.is_kept(group) and group not in c10d.world().pg_map:
            raise RuntimeError(
                f"{_name(frame)}: this process group is of no use any more, the mesh was healed or "
                "regrouped since. Ask for it again: mesh.group(...)"
            ) from None
        if ranks := groups.deaths.soon_among(groups.processes_of(group)):
            who = f"{rank_words(ranks)} {'has' if len(ranks) == 1 else 'have'} died"
            raise RuntimeError(
                f"{_name(frame)}: {who}, so this process group is of no use any more. "
                "Type: %mesh heal"
            ) from None


def _group_of(frame: FrameType | None) -> Group | None:
    while frame is not None and frame.f_globals.get("__name__") in _THROUGH:
        group: Group | None = frame.f_locals.get("group")
        if group is not None:
            return group
        frame = frame.f_back
    return None


def _is_on_cpu(frame: FrameType | None) -> bool:
    # Whether a function of PyTorch's waits for tensors of the CPU, where gloo is the backend
    if frame is None or frame.f_globals.get("__name__") != HOME:
        return False
    names = ("tensor", "output", "input", "tensor_list")
    values: list[object] = [frame.f_locals.get(name) for name in names]
    tensors = [each[0] if isinstance(each, list) and each else each for each in values]
    return {each.device.type for each in tensors if hasattr(each, "device")} == {"cpu"}


def _name(frame: FrameType | None) -> str:
    # The collective that the user has called; of a `Work`, only that it is waited for
    name = "wait"
    while frame is not None and (home := frame.f_globals.get("__name__")) in _THROUGH:
        if home == HOME:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name
