"""Elastic loops of a rank's cells, as they speak with the controller and with the other ranks
(`monarch_nb.elastic`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from monarch_nb.core.wire.messages import elastic as messages
from monarch_nb.core.wire.messages.agents import LoadLibraries
from monarch_nb.core.wire.messages.codec import Refused, Request
from monarch_nb.core.wire.messages.elastic import GroupMade, Kept, Orders
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.instance import here
from monarch_nb.worker.groups import c10d, connecting
from monarch_nb.worker.groups.connecting import connect_again
from monarch_nb.worker.groups.waits import abort_groups

if TYPE_CHECKING:
    from monarch_nb.process.process import Proc
    from monarch_nb.worker.groups.c10d import Group
    from monarch_nb.worker.groups.making import AxisGroups
    from monarch_nb.worker.groups.process_groups import ProcessGroups
    from monarch_nb.worker.groups.replaying import Replaying

A = TypeVar("A")
OWNER: Final = "elastic loops"
"""Whose group it is in which ranks agree on a step."""
LOOKS: Final = 10
"""So often a backward pass is looked at within the time that it may hang."""
LEAVE_S: Final = 5.0
"""For a backward pass to end when the connections of all groups are closed."""
LOOK_S: Final = 1.0
"""How often it is looked whether one has not."""
_HANGS: Final = "timed out: not all ranks came to it within {:.0f} s"


class ElasticRank:
    """The loops of this rank. In a cell that is run again for what it defines, none is run."""

    def __init__(
        self, proc: Proc, groups: ProcessGroups, axes: AxisGroups, again: Replaying
    ) -> None:
        self._proc = proc
        self._groups = groups
        self._axes = axes
        self._again = again
        self._counts: Counter[int] = Counter()

    def new_loop(self) -> CellLoop | PastLoop:
        """Return the next loop of the cell that runs."""
        if self._again.is_of_the_past:
            return PastLoop()
        caller = here.get()
        tag = 0 if caller is None else caller.tag
        self._counts[tag] += 1
        number = self._counts[tag]
        return CellLoop(self._proc, self._groups, self._axes, self._again, tag, number)


class PastLoop:
    """A loop that ranks have run before this one was there."""

    number = 0

    def begin(self, step: int, *_: object, **__: object) -> Orders:
        return Orders(messages.SKIP, step=step)

    def settle(self) -> None: ...

    def agree(self) -> None: ...

    def agree_on_part(self, part: int) -> bool:  # noqa: ARG002
        return False

    def hold(self, step: int, held: Mapping[str, str], **_: object) -> None: ...

    def park(self, step: int, why: str, **_: object) -> Orders:
        raise AssertionError(f"no step {step} is run: {why}")

    def reconnect(self, orders: Orders) -> None: ...

    def group(self) -> Any:
        raise AssertionError("nobody is lost")

    def ready(self, generation: int) -> bool:  # noqa: ARG002
        return True

    def end(self, step: int, *, finished: bool) -> None: ...


class CellLoop:
    """One loop: the `number`th of the cell `tag`."""

    def __init__(
        self,
        proc: Proc,
        groups: ProcessGroups,
        axes: AxisGroups,
        again: Replaying,
        tag: int,
        number: int,
    ) -> None:
        self._proc = proc
        self._groups = groups
        self._axes = axes
        self._again = again
        self._tag = tag
        self._loop = number
        self._ranks: list[int] = []
        self._part = 0
        self._hang_s = 0.0
        self._hung = False
        self._bereaved = groups.bereaved
        self._ended = threading.Event()

    @property
    def number(self) -> int:
        return self._tag << 8 | self._loop & 0xFF

    def begin(
        self, step: int, held: Mapping[str, str], part: int, hang_s: float, *, may_be_fewer: bool
    ) -> Orders:
        made = self._made()
        asked = messages.BeginLoop(
            self._tag, self._loop, step, dict(held), made, part, may_be_fewer
        )
        orders = self._ask(asked)
        self._ranks = [each.rank for each in orders.members]
        self._part, self._hang_s = part, hang_s
        if orders.what != messages.RECOVER:
            self._again.end()
        self._groups.use_as_one(is_one=True)
        # a process that may have to take the place of one needs it, and has no time for it then
        self._proc.control(self._proc.agent, LoadLibraries(["torch"], soon=True))
        watching = threading.Thread(target=self._watch, name="monarch-elastic", daemon=True)
        watching.start()
        return orders

    def settle(self) -> None:
        torch = c10d.load("torch")
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        # a group that was closed meanwhile has ended its collectives with anything
        if self._groups.bereaved != self._bereaved:
            raise RuntimeError("a member of a process group was lost")

    def agree(self) -> None:
        if len(self._ranks) > 1:
            c10d.barrier(self._agreeing())

    def agree_on_part(self, part: int) -> bool:
        if len(self._ranks) == 1:
            return False
        found = c10d.gathered(self._agreeing(), [self._part, part])
        self._part = part
        first, later = zip(*found, strict=True)
        # the groups are the same where each number of then goes with one of now
        return not len(set(first)) == len(set(later)) == len({*map(tuple, found)})

    def _agreeing(self) -> Group:
        return self._axes.of(self._ranks, OWNER, self._hang_s, "gloo")

    def hold(
        self, step: int, held: Mapping[str, str], *, is_snapshot: bool, part: int | None = None
    ) -> None:
        self._tell(messages.HoldStep(self._tag, self._loop, step, dict(held), is_snapshot, part))

    def park(
        self,
        step: int,
        why: str,
        *,
        can_retry: bool,
        snapshots: list[int],
        is_prepared: bool,
        timed_out: bool,
        kept: list[Kept],
        regroups: bool,
    ) -> Orders:
        hung, self._hung = self._hung, False
        asked = messages.ParkRank(
            self._tag,
            self._loop,
            step,
            why,
            can_retry,
            snapshots,
            self._made(),
            is_prepared,
            timed_out or hung,
            kept,
            regroups,
        )
        return self._ask(asked)

    def reconnect(self, orders: Orders) -> None:
        self._again.end()  # a newcomer is one of the others from here on
        self._ranks = [each.rank for each in orders.members]
        self._groups.expect({each.rank: each.process for each in orders.members})
        me, self._bereaved = self._groups.world.rank, self._groups.bereaved
        for like in orders.groups:
            if me not in like.ranks:
                continue
            group = _found(like.name)
            if group is None:  # one that is made by whoever uses it first
                group = self._again.made_alone(like)
            if connecting.is_alone(group):
                connecting.connect_for_real(self._groups, group, like)
            else:
                abort_groups([group])
                connect_again(self._groups, group)

    def group(self) -> Any:
        return self._axes.of(self._ranks)

    def ready(self, generation: int) -> bool:
        return self._ask(messages.RankReady(self._tag, self._loop, generation)).good

    def end(self, step: int, *, finished: bool) -> None:
        self._ended.set()
        self._groups.use_as_one(is_one=False)
        self._tell(messages.EndLoop(self._tag, self._loop, step, finished))

    def _watch(self) -> None:
        every_s = self._hang_s / LOOKS
        next_s = time.monotonic() + every_s
        while not self._ended.wait(min(every_s, LOOK_S)):
            if self._is_stuck():
                self._tell(messages.RankStuck(self._tag, self._loop))
            if time.monotonic() >= next_s:
                next_s += every_s
                self._end_hung()

    def _is_stuck(self) -> bool:
        # gloo ends all waits on connections that are closed, but for that whose message it was
        # about to send or had begun to receive: this one goes on for ever
        closed_ns = self._groups.bereaved_ns
        is_bereaved = self._groups.bereaved != self._bereaved
        is_late = time.time_ns() - closed_ns > LEAVE_S * 1e9
        return is_bereaved and is_late and self._groups.is_in_backward_since(closed_ns)

    def _end_hung(self) -> None:
        # C++ counts no time while DDP waits for others
        groups = self._groups
        if groups.is_stuck_in_backward(self._hang_s) and groups.timeouts.only_gloo:
            self._hung = True
            groups.end_in_cpp("backward pass", _HANGS.format(self._hang_s))

    def _made(self) -> list[GroupMade]:
        if c10d.loaded() is None:
            return []
        return [connecting.made(self._groups, group) for group in list(c10d.world().pg_map)]

    def _tell(self, message: object) -> None:
        self._proc.control(self._proc.controller, message)
        self._proc.links.flush()

    def _ask(self, request: Request[A]) -> A:
        answered: Future[A | Refused] = make(Future)
        self._proc.ask(self._proc.controller, request, answered._set_result)
        self._proc.links.flush()
        answer = answered.get()
        if isinstance(answer, Refused):
            raise RuntimeError(f"elastic: {answer.error}")  # noqa: TRY004  it is what was said
        return answer


def _found(name: str) -> Group | None:
    if c10d.loaded() is None:
        return None
    return next((each for each in list(c10d.world().pg_map) if each.group_name == name), None)
