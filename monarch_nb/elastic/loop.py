"""`run`: a training loop whose ranks come back in the middle of it.

Rules: a step's optimizers run only once all ranks are prepared for it, which they find out by a
collective of their own; so what a fault leaves undone is the same on all ranks, and is begun again
with the same batch and the same random numbers. Where the fault came in the midst of that
collective the controller knows what the others have done. What goes wrong in the body reaches the
loop by `absorb`, which cells call by themselves, and `with loop.step()` elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Self

from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from monarch_nb.core.wire.messages.elastic import GO, RAISE, SKIP, TAKE, Kept, Newcomer, Orders
from monarch_nb.elastic import contents, moving, reducers
from monarch_nb.elastic.contents import Contents
from monarch_nb.elastic.held import Held, News
from monarch_nb.elastic.parts import part_of
from monarch_nb.elastic.reducers import Layout
from monarch_nb.elastic.snapshots import Keeping, Sending, Snapshot, Snapshots
from monarch_nb.elastic.state import State, batches_of, modules_of, optimizers_of
from monarch_nb.elastic.undo import Before, before, check_can_reshard, reshard, undo
from monarch_nb.process import current
from monarch_nb.services.elastic import Elastic, Loop

COMPARED: Final = 1
"""After so many steps ranks find out who has the same: optimizers have moved what began alike."""
SETTLED: Final = 2
"""After so many steps `DistributedDataParallel` has the buckets that it keeps."""
_FAULTS: Final = (RuntimeError, OSError, TimeoutError)
"""What PyTorch raises where a rank is lost. Nothing else is asked about."""
_TIMED_OUT: Final = "timed out"  # so PyTorch says, and the mesh


class _Again(BaseException):
    """The step does not count: do this. Not an `Exception`: no body is to swallow it."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders


def run(
    state: State,
    *,
    until: int,
    snapshot_every: int = 20,
    timeout: float = 600,
    on_recovery: Callable[[], object] | None = None,
    on_fewer: Callable[[ProcessGroup], object] | None = None,
) -> Run:
    """Yield the state once for each step, from `state.step` on; bring lost ranks back meanwhile.

    When a rank dies, the others leave the collective that they wait in, the mesh is healed at the
    same place, and the new process runs the cells that define what this one uses, and gets models
    and optimizers from a rank that lives. Then all begin the step again, with the same batches and
    random numbers. Losses are those of a run without a fault, bit by bit.

    The body has one optimizer step, of each optimizer in the state. What stands after it runs once;
    what stands before it may run again.

    Args:
        until: the step before which it ends.
        snapshot_every: where ranks have parts of the model that no other has (`fully_shard`,
            pipelines), after so many steps each copies its part, into its own memory and that of
            another host. To the last such step all go back after a fault.
        timeout: a rank is ended, and comes back, when others have waited for it so many seconds
            in a step. Collectives of yours have the time-out of their group.
        on_recovery: called on all ranks before they go on after a fault, to make anew what a step
            that was interrupted has left in disorder, as the schedule of a pipeline.
        on_fewer: called on all ranks that are left, with their process group, where nobody can
            take the place of a rank that is lost, as no GPU is free: to make anew what depends on
            the number of ranks, as `DistributedDataParallel` and the loader, and put it into the
            state. For models of which each rank has a copy. Without it the loop raises then.

    Raises:
        RuntimeError: the loop cannot go on: no rank is left that has the state, or nobody can take
            the place of one that is lost.

    Example:
        >>> for state in elastic.run(state, until=1_000):            # doctest: +SKIP
        ...     inputs, targets = state.batch
    """
    new_loop = current.part(Elastic).new_loop
    after = AfterFault(on_recovery, on_fewer)
    return Run(state, until, snapshot_every, timeout, after, new_loop)


class AfterFault(NamedTuple):
    """Functions of the user's that `run` calls after a fault; None: nothing is called."""

    on_recovery: Callable[[], object] | None
    on_fewer: Callable[[ProcessGroup], object] | None


class Run(Iterator[State]):
    """One loop on one rank."""

    def __init__(
        self,
        state: State,
        until: int,
        snapshot_every: int,
        timeout: float,
        after: AfterFault,
        new_loop: Callable[[], Loop] | None,
    ) -> None:
        self._state = state
        self._until = until
        self._snapshot_every = snapshot_every
        self._timeout = timeout
        self._after = after
        self._loop = None if new_loop is None else new_loop()
        self._is_over = False
        self._has_failed = False
        self._in_step = False
        self._counts = False  # this step is taken, by all
        self._taken = 0  # steps, here
        self._before: Before | None = None
        self._snapshots = Snapshots()
        self._keeping = Keeping()
        self._sending: Sending | None = None  # to who keeps those of this rank
        self._with_snapshots = False
        self._layouts: list[Layout] = []  # of each DistributedDataParallel
        self._news = News()
        self._hooks: list[Any] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> State:
        if self._in_step:
            self._end_step()
        elif self._before is None:
            self._begin()
        self._leave_with_all()
        if self._is_over:
            raise StopIteration
        self._in_step, self._counts = True, False
        return self._state

    def absorb(self, error: BaseException) -> bool:
        """Tell whether an error of the body was that of a fault, and the loop goes on."""
        if self._loop is None or self._is_over or self._has_failed or not self._in_step:
            return False
        if not isinstance(error, (_Again, *_FAULTS)):
            return False
        if self._counts:  # the optimizers have run: what stands behind them is left out
            self._count()
        self._in_step = False
        orders = error.orders if isinstance(error, _Again) else self._park(error)
        if _is_own(orders):
            self._has_failed = True
            return False
        self._recover(orders)
        return True

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Stand around the body, where it is not in a cell: `with loop.step():`."""
        try:
            yield
        except BaseException as error:
            if not self.absorb(error):
                raise

    def close(self) -> None:
        """Leave the loop. Harmless when repeated."""
        self._close(finished=False)

    def _close(self, *, finished: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        for hook in self._hooks:
            hook.remove()
        self._keeping.end()
        if self._sending is not None:
            self._sending.end()
        if self._loop is not None:
            self._loop.end(self._state.step, finished=finished)

    # steps

    def _begin(self) -> None:
        state = self._state
        check_can_reshard(state)
        self._before = before(state, Held.now(state))
        self._hook_optimizers()
        if self._loop is None:
            return
        self._see_layouts()
        held = self._news.of(self._before.held)
        may_be_fewer = self._after.on_fewer is not None
        orders = self._loop.begin(
            state.step, held, part_of(state), self._timeout, may_be_fewer=may_be_fewer
        )
        if orders.what == SKIP:
            state.step = orders.step
            self._is_over = True
        elif orders.what != GO:
            self._recover(orders)
        else:
            self._keep_for(orders)
            self._take_snapshot(is_first=True)

    def _hook_optimizers(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            each.register_step_pre_hook(self._before_optimizer)
            for each in optimizers_of(self._state).values()
        ]

    def _keep_for(self, orders: Orders) -> None:
        # to whom snapshots go from now on, and whose come here
        assert self._loop is not None
        self._with_snapshots = orders.with_snapshots
        tag = self._loop.number << 16 | orders.generation & 0xFFFF
        if self._sending is not None:
            self._sending.end()
        keeper = orders.keeper
        self._sending = Sending(keeper, tag, self._timeout) if keeper else None
        self._keeping.begin(orders.wards, tag)

    def _take_snapshot(self, *, is_first: bool) -> None:
        # at the begin of a step. The first goes before anything else: a rank that dies then is lost
        assert self._before is not None
        found = contents.packed(self._contents())
        self._snapshots.add(self._state.step, Snapshot(found, self._before))
        if self._loop is None or not self._with_snapshots:
            return
        news = self._news.of(self._before.held)
        self._loop.hold(self._state.step, news, is_snapshot=True)
        if self._sending is not None:
            self._sending.begin(found)
            if is_first:
                self._sending.wait()

    def _see_layouts(self) -> None:
        found = reducers.replicated(modules_of(self._state))
        self._layouts = [reducers.layout_of(each) for each in found]

    def _contents(self) -> Contents:
        return contents.contents(self._state, self._taken, self._layouts)

    def _leave_with_all(self) -> None:
        # a rank that dies before all have come to the end comes back
        while not self._is_over and self._state.step >= self._until:
            if self._is_agreed():
                self._close(finished=True)

    def _before_optimizer(self, _: Optimizer, __: Any, ___: Any) -> None:
        # the first one in a step asks for all
        if self._in_step and not self._counts and not self._is_over:
            orders = self._agree()
            if orders is not None:
                raise _Again(orders)

    def _end_step(self) -> None:
        # of one without an optimizer too
        is_taken = self._counts or self._is_agreed()
        self._in_step = False
        if is_taken:
            self._count()

    def _is_agreed(self) -> bool:
        # whether all take the step; else all were brought to where they begin it again
        try:
            orders = self._agree()
        except _FAULTS as error:
            if self._has_failed:
                raise
            orders = self._park(error)
            if _is_own(orders):
                raise
        if orders is None:
            return True
        self._recover(orders)
        return False

    def _agree(self) -> Orders | None:
        # None: the step counts. Else what to do instead
        if self._loop is not None:
            self._hold(self._state.step + 1, Held.now(self._state))
            self._loop.settle()
            try:
                if self._is_regrouped():
                    return self._park(regroups=True)
            except _FAULTS as error:
                orders = self._park(error, is_prepared=True)
                if _is_own(orders):
                    self._has_failed = True
                    raise
                if orders.what != TAKE:
                    return orders
        self._counts = True
        return None

    def _is_regrouped(self) -> bool:
        # waits for all; whether ranks have parts of their own that began alike, or the other way
        assert self._loop is not None
        if self._sending is not None and self._is_before_snapshot():
            self._sending.wait()
        if self._taken != COMPARED:
            self._loop.agree()
            return False
        part = part_of(self._state)
        self._loop.hold(self._state.step + 1, {}, is_snapshot=False, part=part)
        return self._loop.agree_on_part(part)

    def _count(self) -> None:
        state = self._state
        state.step += 1
        self._taken += 1
        if (batches := batches_of(state)) is not None:
            batches.count()
        if self._taken == SETTLED:
            self._see_layouts()
        held = Held.now(state)
        self._before = before(state, held)
        self._hold(state.step, held)
        if not self._with_snapshots:
            if self._taken >= SETTLED:  # every other rank has the same
                self._snapshots.forget()
        elif self._taken % self._snapshot_every == 0:
            self._take_snapshot(is_first=False)

    def _is_before_snapshot(self) -> bool:
        return (self._taken + 1) % self._snapshot_every == 0

    def _hold(self, step: int, held: Held) -> None:
        if self._loop is not None and (news := self._news.of(held)):
            self._loop.hold(step, news, is_snapshot=False)

    # recovery

    def _park(
        self,
        error: BaseException | None = None,
        *,
        is_prepared: bool = False,
        regroups: bool = False,
    ) -> Orders:
        assert self._loop is not None
        return self._loop.park(
            self._state.step,
            "" if error is None else f"{type(error).__name__}: {error}",
            # in the second step buckets change, and who has the same is not known yet
            can_retry=self._taken != COMPARED,
            snapshots=self._snapshots.steps,
            is_prepared=is_prepared,
            timed_out=isinstance(error, TimeoutError) or _TIMED_OUT in str(error),
            kept=self._keeping.all(),
            regroups=regroups,
        )

    def _recover(self, orders: Orders) -> None:
        assert self._loop is not None
        while orders.what != RAISE:
            try:
                self._obey(orders)
                if self._loop.ready(orders.generation):
                    self._go_on(orders)
                    return
                orders = self._park()
            except _FAULTS as error:
                orders = self._park(error)
        self._has_failed = True
        if self._before is not None:  # who goes on by hand has the begin of a step, on all ranks
            reshard(self._state)
            undo(self._state, self._before)
        raise RuntimeError(f"elastic: {orders.why or 'the loop cannot go on'}") from None

    def _go_on(self, orders: Orders) -> None:
        self._news.forget()
        assert self._before is not None
        self._hold(self._state.step, self._before.held)
        self._keep_for(orders)
        # the one before may have gone with who kept it, and a newcomer has none of the begin
        if self._with_snapshots or self._taken == 0:
            self._take_snapshot(is_first=True)

    def _obey(self, orders: Orders) -> None:
        assert self._loop is not None
        mine = [each for each in orders.newcomers if each.process == current.proc().id]
        if not mine:
            self._go_back(orders)
        if orders.fewer and mine and not orders.shrinks:  # what the others did before, alone
            self._be_fewer(self._loop.group())
        self._loop.reconnect(orders)
        if orders.shrinks:
            self._be_fewer(self._loop.group())
        if mine:
            self._arrive(orders, mine[0])
        else:
            for each in orders.newcomers:
                if each.source_process == current.proc().id:
                    kept = Kept(each.rank, orders.step)
                    found = self._keeping.of(kept).contents if each.kept else self._contents()
                    moving.send(found, each.process)
            self._keeping.forget_after(orders.step)
        for ddp, layout in zip(
            reducers.replicated(modules_of(self._state)), self._layouts, strict=True
        ):
            reducers.renew(ddp, layout)
        if self._after.on_recovery is not None:
            self._after.on_recovery()

    def _be_fewer(self, group: ProcessGroup) -> None:
        assert self._after.on_fewer is not None
        self._after.on_fewer(group)
        self._hook_optimizers()
        self._taken = 0  # what is new has to settle as at the begin
        self._see_layouts()
        self._before = before(self._state, Held.now(self._state))

    def _go_back(self, orders: Orders) -> None:
        assert self._before is not None
        reshard(self._state)
        if not orders.snapshot:
            undo(self._state, self._before)
            return
        found, self._before = self._snapshots.of(orders.step)
        self._snapshots.forget_after(orders.step)
        contents.fill(contents.describe(self._state, found.description), found.contents.tensors)
        undo(self._state, self._before)
        self._taken, self._layouts = found.description.taken, found.description.layouts
        place = self._before.held.place
        if (batches := batches_of(self._state)) is not None and place is not None:
            batches.go_to(place)

    def _arrive(self, orders: Orders, me: Newcomer) -> None:
        description = moving.receive(
            me.source_process, lambda found: contents.describe(self._state, found)
        )
        held = Held.of(orders.held)
        held.take(self._state)
        self._before = before(self._state, held)
        self._taken = description.taken
        self._layouts = description.layouts


def _is_own(orders: Orders) -> bool:
    # the error that was asked about is the user's
    return orders.what == RAISE and not orders.why
