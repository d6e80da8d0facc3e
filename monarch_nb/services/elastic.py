"""What an elastic loop needs of the rank it runs on: `monarch_nb.elastic` finds it here.

A rank has one; the controller, and a program without a mesh, have none, and a loop there is a plain
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from monarch_nb.core.wire.messages.elastic import Kept, Orders


class Loop(Protocol):
    """The side of one loop that speaks with others. Each call waits, unless it says otherwise, and
    raises what PyTorch does where ranks are lost."""

    @property
    def number(self) -> int:
        """Which loop of this mesh it is: the same on all ranks, and no other's."""

    def begin(
        self, step: int, held: Mapping[str, str], part: int, hang_s: float, *, may_be_fewer: bool
    ) -> Orders:
        """Say that this rank has come to the loop; the rest as in `BeginLoop`. Others are waited
        for at most `hang_s` in `agree`, and in a backward pass."""

    def settle(self) -> None:
        """Wait until this rank's devices have done what was begun on them."""

    def agree(self) -> None:
        """Wait until all ranks of the loop have come to this."""

    def agree_on_part(self, part: int) -> bool:
        """The same, when parts are compared; tell whether other ranks are equal than at the
        begin."""

    def hold(
        self, step: int, held: Mapping[str, str], *, is_snapshot: bool, part: int | None = None
    ) -> None:
        """Say what has changed, as in `HoldStep`. Waits for nothing."""

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
        """Say that this rank has stopped, as in `ParkRank`, and ask what to do."""

    def reconnect(self, orders: Orders) -> None:
        """Connect the process groups again, with the newcomers."""

    def group(self) -> ProcessGroup:
        """Return the process group of the ranks that are left. Before `reconnect` that of a
        newcomer connects nobody."""

    def ready(self, generation: int) -> bool:
        """Say that this rank has done what it was ordered; tell whether all have."""

    def end(self, step: int, *, finished: bool) -> None:
        """Say that this rank has left the loop, as in `EndLoop`. Waits for nothing."""


class Elastic:
    """`new_loop()` is the next one of the cell that runs; None where there is no mesh."""

    def __init__(self, new_loop: Callable[[], Loop] | None = None) -> None:
        self.new_loop = new_loop
