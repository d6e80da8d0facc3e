"""Process groups that connect nobody: a new process runs again what others have run, and they are
not there to meet it.

What a program sends to others in that time goes nowhere, and what it receives is not changed. The
groups are made real afterwards, in place (`connect_for_real`): whatever holds them holds them on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.worker.groups import c10d

if TYPE_CHECKING:
    from monarch_nb.core.wire.messages.elastic import GroupMade
    from monarch_nb.worker.groups.c10d import Group
    from monarch_nb.worker.groups.process_groups import ProcessGroups

_FAKE_BACKEND: Final = "FakeProcessGroup"
_FAKE: Final = "torch.testing._internal.distributed.fake_pg"  # registers the backend "fake"


class Replaying:
    """Of this process. `is_of_the_past`: what runs is run for what it defines alone."""

    def __init__(self, groups: ProcessGroups, flush: Callable[[], None]) -> None:
        self.is_of_the_past = False
        self._groups = groups
        self._flush = flush  # what was printed, which goes nowhere
        self._undo: list[Callable[[], None]] = []

    def begin(self, *, is_of_the_past: bool) -> None:
        """Connect no group from now on."""
        self.is_of_the_past = is_of_the_past
        home = c10d.load(c10d.HOME)
        c10d.load(_FAKE)
        original = home._new_process_group_helper

        def helper(*args: Any, **options: Any) -> object:
            size, rank, members, _, store, name, *_ = args
            kept = {key: options[key] for key in ("timeout", "group_desc") if key in options}
            return original(size, rank, members, home.Backend("fake"), store, name, **kept)

        self._groups.begin_alone()
        self._replace(home, "_new_process_group_helper", helper)
        self._replace(home, "_store_based_barrier", lambda *_, **__: None)
        self._replace(home, "barrier", lambda *_, **__: None)

    def end(self) -> None:
        """Let groups be made as ever. Harmless when repeated."""
        if not self._groups.is_alone:
            return
        self._flush()
        self.is_of_the_past = False
        self._restore()

    def made_alone(self, like: GroupMade) -> Group:
        """Make a group that others have, and that connects nobody here yet."""
        home, world = c10d.load(c10d.HOME), self._groups.world
        timeout = dt.timedelta(seconds=like.timeout_s)
        self.begin(is_of_the_past=False)
        try:
            if like.name == c10d.DEFAULT_NAME:
                init = home.init_process_group.__wrapped__
                init(
                    "fake", timeout=timeout, world_size=world.size, rank=world.rank,
                    store=c10d.own_store(),
                )  # fmt: skip
                made: Group = home.GroupMember.WORLD
                return made
            made, _ = home._new_process_group_helper(
                len(like.ranks), like.ranks.index(world.rank), like.ranks, home.Backend("fake"),
                c10d.own_store(), like.name, timeout=timeout, group_desc=like.name,
            )  # fmt: skip
            numbers = {rank: number for number, rank in enumerate(like.ranks)}
            c10d.world().pg_group_ranks[made] = numbers
            return made
        finally:
            self._restore()

    def _restore(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._groups.end_alone()

    def _replace(self, module: Any, name: str, value: object) -> None:
        before = vars(module)[name]
        vars(module)[name] = value
        self._undo.append(lambda: vars(module).update({name: before}))
