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
from typing import Any, Final, Self

from torch.optim import Optimizer

from monarch_nb.core.wire.messages.elastic import GO, RAISE, SKIP, TAKE, Newcomer, Orders
from monarch_nb.elastic import contents, moving, reducers
from monarch_nb.elastic.contents import Contents
from monarch_nb.elastic.held import Held, News
from monarch_nb.elastic.reducers import Layout
from monarch_nb.elastic.state import State, batches_of, modules_of, optimizers_of
from monarch_nb.elastic.undo import Before, before, undo
from monarch_nb.process import current
from monarch_nb.services.elastic import Elastic, Loop

SETTLED: Final = 2
"""After so many steps `DistributedDataParallel` has the buckets that it keeps."""
_FAULTS: Final = (RuntimeError, OSError, TimeoutError)
"""What PyTorch raises where a rank is lost. Nothing else is asked about."""
_TIMED_OUT: Final = "timed out"  # so PyTorch says, and the mesh


class _Again(BaseException):
    """The step does not count: do this. Not an `Exception`: no body is to swallow it."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders


def run(state: State, *, until: int, timeout: float = 600) -> Run:
    """Yield the state once for each step, from `state.step` on; bring lost ranks back meanwhile.

    When a rank dies, the others leave the collective that they wait in, the mesh is healed at the
    same place, and the new process runs the cells that define what this one uses, and gets models
    and optimizers from a rank that lives. Then all begin the step again, with the same batches and
    random numbers. Losses are those of a run without a fault, bit by bit.

    The body has one optimizer step, of each optimizer in the state. What stands after it runs once;
    what stands before it may run again.

    Args:
        until: the step before which it ends.
        timeout: a rank is ended, and comes back, when others have waited for it so many seconds
            in a step. Collectives of yours have the time-out of their group.

    Raises:
        RuntimeError: the loop cannot go on: no rank is left that has the state.

    Example:
        >>> for state in elastic.run(state, until=1_000):            # doctest: +SKIP
        ...     inputs, targets = state.batch
    """
    return Run(state, until, timeout, current.part(Elastic).new_loop)


class Run(Iterator[State]):
    """One loop on one rank."""

    def __init__(
        self, state: State, until: int, timeout: float, new_loop: Callable[[], Loop] | None
    ) -> None:
        self._state = state
        self._until = until
        self._timeout = timeout
        self._loop = None if new_loop is None else new_loop()
        self._is_over = False
        self._has_failed = False
        self._in_step = False
        self._counts = False  # this step is taken, by all
        self._taken = 0  # steps, here
        self._before: Before | None = None
        self._first: tuple[int, Contents, Before] | None = None  # the step it began with
        self._layouts: list[Layout] = []  # of each DistributedDataParallel
        self._settles = False  # they change in the second step
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
        if self._loop is not None:
            self._loop.end(self._state.step, finished=finished)

    # steps

    def _begin(self) -> None:
        state = self._state
        self._before = before(state, Held.now(state))
        for optimizer in optimizers_of(state).values():
            self._hooks.append(optimizer.register_step_pre_hook(self._before_optimizer))
        if self._loop is None:
            return
        self._see_layouts()
        held = self._news.of(self._before.held)
        orders = self._loop.begin(state.step, held, self._timeout)
        if orders.what == SKIP:
            state.step = orders.step
            self._is_over = True
        elif orders.what != GO:
            self._recover(orders)
        if self._taken == 0 and not self._is_over:
            self._first = state.step, contents.copied(self._contents()), self._before

    def _see_layouts(self) -> None:
        found = reducers.replicated(modules_of(self._state))
        self._layouts = [reducers.layout_of(each) for each in found]
        if self._taken == 0:
            first = [reducers.first_layout_of(each) for each in found]
            self._settles = any(now == one for now, one in zip(self._layouts, first, strict=True))

    def _contents(self) -> Contents:
        return contents.contents(self._state, self._taken, self._layouts, settles=self._settles)

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
                self._loop.agree()
            except _FAULTS as error:
                orders = self._park(error, is_prepared=True)
                if _is_own(orders):
                    self._has_failed = True
                    raise
                if orders.what != TAKE:
                    return orders
        self._counts = True
        return None

    def _count(self) -> None:
        state = self._state
        state.step += 1
        self._taken += 1
        if (batches := batches_of(state)) is not None:
            batches.count()
        if self._taken >= SETTLED and self._first is not None:
            self._first = None
            self._see_layouts()
        held = Held.now(state)
        self._before = before(state, held)
        self._hold(state.step, held)

    def _hold(self, step: int, held: Held) -> None:
        if self._loop is not None and (news := self._news.of(held)):
            self._loop.hold(step, news)

    # recovery

    def _park(self, error: BaseException | None = None, *, is_prepared: bool = False) -> Orders:
        assert self._loop is not None
        return self._loop.park(
            self._state.step,
            "" if error is None else f"{type(error).__name__}: {error}",
            # the second step is not like others where buckets change in the midst of it
            can_retry=not (self._settles and self._taken == 1),
            snapshots=[] if self._first is None else [self._first[0]],
            is_prepared=is_prepared,
            timed_out=isinstance(error, TimeoutError) or _TIMED_OUT in str(error),
        )

    def _recover(self, orders: Orders) -> None:
        assert self._loop is not None
        while orders.what != RAISE:
            try:
                self._obey(orders)
                if self._loop.ready(orders.generation):
                    self._news.forget()
                    self._before = before(self._state, Held.now(self._state))
                    return
                orders = self._park()
            except _FAULTS as error:
                orders = self._park(error)
        self._has_failed = True
        raise RuntimeError(f"elastic: {orders.why or 'the loop cannot go on'}")

    def _obey(self, orders: Orders) -> None:
        assert self._loop is not None
        mine = [each for each in orders.newcomers if each.process == current.proc().id]
        if not mine:
            self._go_back(orders)
        self._loop.reconnect(orders)
        if mine:
            self._arrive(orders, mine[0])
        else:
            for each in orders.newcomers:
                if each.source_process == current.proc().id:
                    moving.send(self._contents(), each.process)
        for ddp, layout in zip(
            reducers.replicated(modules_of(self._state)), self._layouts, strict=True
        ):
            reducers.renew(ddp, layout)

    def _go_back(self, orders: Orders) -> None:
        assert self._before is not None
        if not orders.snapshot:
            undo(self._state, self._before)
            return
        assert self._first is not None
        _, found, self._before = self._first
        contents.fill(contents.describe(self._state, found.description), found.tensors)
        undo(self._state, self._before)
        self._taken, self._layouts = 0, found.description.layouts
        place = self._before.held.place
        if (batches := batches_of(self._state)) is not None and place is not None:
            batches.go_to(place)

    def _arrive(self, orders: Orders, me: Newcomer) -> None:
        description = moving.receive(
            me.source_process, lambda found: contents.describe(self._state, found)
        )
        Held.of(orders.held).take(self._state)
        self._taken = description.taken
        self._layouts, self._settles = description.layouts, description.settles


def _is_own(orders: Orders) -> bool:
    # the error that was asked about is the user's
    return orders.what == RAISE and not orders.why
