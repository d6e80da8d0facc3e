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
from monarch_nb.core.points import point
from monarch_nb.worker.groups import c10d, waits
from monarch_nb.worker.groups.c10d import HOME, Group, Work, group_of, name_of
from monarch_nb.worker.groups.meeting import peers
from monarch_nb.worker.groups.process_groups import ANYBODY, FROM, TO, ProcessGroups, ToOne, Wait
from monarch_nb.worker.groups.waits import Limit, ThreadedWait

_BROKEN: Final = ("onnection", "pair closure", "ead error", "rite error", "cannot be used any more")
"""Of what gloo says when a peer is gone, and of what is said of a group that was left."""
_NONE: Final = dt.timedelta(0)  # PyTorch's word for no timeout

Original = Callable[..., object]


class CollectiveWaits:
    """What stands in the place of PyTorch's waits, once `install` was called."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._has_told = False

    def install(self) -> None:
        """Replace waits from the first process group on."""
        home, groups = c10d.load(HOME), self._groups
        register = home._register_process_group

        def registered(name: str, group: Group) -> None:
            self._replace_waits()
            self._tell_first()
            if not groups.is_alone:
                groups.timeouts.add(name, group)
            if c10d.world().default_pg is None and len(c10d.world().pg_map) <= 1:
                groups.abandoned.forget()  # the first of new ones
            register(name, group)

        vars(home)["_register_process_group"] = registered
        peers.install(groups.peers)

    def _tell_first(self) -> None:
        if self._groups.is_of_cells and not self._has_told:
            self._has_told = True
            self._groups.tell(False)

    def _replace_waits(self) -> None:
        bindings = c10d.load("torch._C._distributed_c10d")
        self._replace(bindings.Work, "wait", self._wait)
        if hasattr(bindings.ProcessGroup, "monitored_barrier"):
            self._replace(bindings.ProcessGroup, "monitored_barrier", self._call)
        for method, kind in (("send", TO), ("recv", FROM), ("recv_anysource", FROM)):
            self._count(bindings.ProcessGroup, method, kind)

    def _count(self, cls: type, method: str, kind: str) -> None:
        # the recorder and gloo's own numbers leave these out
        original: Original = getattr(cls, method)
        if hasattr(original, "__wrapped__"):
            return
        to_one, of_anybody = self._groups.to_one, method == "recv_anysource"
        begun_to_one = self._groups.begun_to_one

        def begin(group: Group, tensors: object, *rest: object, **options: object) -> object:
            begun = original(group, tensors, *rest, **options)
            counts = to_one.setdefault(group.group_name, {})
            peer = ANYBODY if of_anybody or not rest else rest[0]
            number = counts[kind, peer] = counts.get((kind, peer), 0) + 1
            if begun is not None:
                begun_to_one[begun] = ToOne(group.group_name, kind, peer, number)
            return begun

        begin.__code__ = begin.__code__.replace(co_name=method)
        setattr(cls, method, functools.wraps(original)(begin))

    def _replace(self, cls: type, method: str, replacement: Callable[..., object]) -> None:
        original: Original = getattr(cls, method)
        if hasattr(original, "__wrapped__"):
            return
        begin, end, explain = self._groups.begin_wait, self._groups.end_wait, self._explain

        # a subclass in Python inherits this: pybind11 tells that it is no override of the subclass
        # by the names of function and first argument
        def wait(self: object, *args: object, **options: object) -> object:
            frame = sys._getframe(1)
            point("collective.wait")
            known = begin(name_of(frame), frame, self)
            try:
                return replacement(original, cls, self, *args, **options)
            except RuntimeError as error:
                explain(frame, error, known)
                raise
            finally:
                end(known)

        wait.__code__ = wait.__code__.replace(co_name=method)
        setattr(cls, method, functools.wraps(original)(wait))

    def _wait(
        self, original: Original, cls: type, work: Work, timeout: dt.timedelta = _NONE
    ) -> object:
        groups = self._groups
        if type(work) is not cls or not (groups.timeouts.only_gloo or _is_on_cpu(sys._getframe(2))):
            return original(work, timeout)
        if groups.abandoned:
            groups.abandoned.check(work, _group_name(sys._getframe(2)))
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
        self._groups.abandoned.check(group, group.group_name)
        return self._blocked(lambda: original(group, *args, **options))

    def _blocked(self, wait: Callable[[], object]) -> object:
        # A wait that no signal reaches: `interrupted` ends it, if it is the main thread's
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._groups.blocked.append(name_of(sys._getframe(3)))
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
                frame = sys._getframe(3)
                self._groups.abandoned.add(name_of(frame), _group_name(frame), work, is_done)
            raise

    def _limit(self, frame: FrameType | None, timeout: dt.timedelta) -> Limit:
        # What the caller has given, else the timeout of the group
        known = timeout or self._groups.timeouts.timeout(_group_name(frame))
        wait = self._groups.waits[threading.get_ident()]
        return Limit(name_of(frame), known, self._groups.paused, lambda: wait.ended)

    def _explain(self, frame: FrameType | None, error: RuntimeError, wait: Wait) -> None:
        """Raise `RuntimeError` that says why the wait was ended, names the members which have died,
        or says that the group is an old one, if that may be the cause."""
        if wait.ended and wait.ended not in str(error):
            raise RuntimeError(f"{name_of(frame)}: {wait.ended}") from None
        if not any(word in str(error) for word in _BROKEN):
            return
        groups, group = self._groups, group_of(frame)
        if group is not None and groups.is_kept(group) and group not in c10d.world().pg_map:
            raise RuntimeError(
                f"{name_of(frame)}: this process group is of no use any more, the mesh was healed "
                "or regrouped since. Ask for it again: mesh.group(...)"
            ) from None
        if ranks := groups.deaths.soon_among(groups.processes_of(group)):
            who = f"{rank_words(ranks)} {'has' if len(ranks) == 1 else 'have'} died"
            raise RuntimeError(
                f"{name_of(frame)}: {who}, so this process group is of no use any more. "
                "Type: %mesh heal"
            ) from None


def _group_name(frame: FrameType | None) -> str:
    return getattr(group_of(frame), "group_name", "")


def _is_on_cpu(frame: FrameType | None) -> bool:
    # Whether a function of PyTorch's waits for tensors of the CPU, where gloo is the backend
    if frame is None or frame.f_globals.get("__name__") != HOME:
        return False
    names = ("tensor", "output", "input", "tensor_list")
    values: list[object] = [frame.f_locals.get(name) for name in names]
    tensors = [each[0] if isinstance(each, list) and each else each for each in values]
    return {each.device.type for each in tensors if hasattr(each, "device")} == {"cpu"}
