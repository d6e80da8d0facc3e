"""Process groups of some ranks of the mesh, made when they are first asked for and then kept.

Only the members call, in any thread; nobody else is needed, the default group neither. They meet
in the mesh's store under a name that follows from their ranks, so that it is the same on all of
them whatever else they have made. PyTorch knows the groups as those of `new_group`: functional
collectives and DTensor find them by name.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence

from monarch_nb.worker.groups import c10d, default_group, rendezvous
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups


class AxisGroups:
    """Those of this process. A heal, a regroup or a script has its own."""

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def of(self, ranks: Sequence[int], owner: str = "", timeout: float | None = None) -> Group:
        """The `ProcessGroup` of exactly these ranks of the mesh; waits for them the first time.

        `timeout` in seconds is for that and for each of its collectives from now on; None: as it
        is, 60 at first. Each `owner` has its own: collectives of two must not mix, in whatever
        order they come.

        Raises `ValueError` where this rank is none of them or one is named twice, `TimeoutError`
        naming those that did not come.
        """
        members = sorted(ranks)
        _check(members, self._groups.world)
        name = rendezvous.APART + ",".join(map(str, members)) + (f" of {owner}" if owner else "")
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:  # two groups at once must not wait for each other: a lock for each
            limit = default_group.TIMEOUT if timeout is None else dt.timedelta(seconds=timeout)
            found = _known(name) or self._make(name, members, limit)
            if timeout is not None:
                self._groups.timeouts.set_timeout(name, found, limit)
            return found

    def _make(self, name: str, members: list[int], timeout: dt.timedelta) -> Group:
        home, world = c10d.load(c10d.HOME), self._groups.world
        store = rendezvous.meet(self._groups, name, members, timeout, f"the group of {name}")
        made: tuple[Group, object] = home._new_process_group_helper(
            len(members), members.index(world.rank), members, home.Backend(default_group.backend()),
            store, name, timeout=timeout, group_desc=name,
        )  # fmt: skip
        c10d.world().pg_group_ranks[made[0]] = {each: index for index, each in enumerate(members)}
        return made[0]


def _check(members: list[int], world: Place) -> None:
    if len(set(members)) != len(members):
        raise ValueError(f"a rank is named twice in the group of ranks {members}")
    if world.rank not in members:
        raise ValueError(
            f"rank {world.rank} is not in the group of ranks {members}: only its members use it"
        )
    if members[0] < 0 or members[-1] >= world.size:
        raise ValueError(f"ranks {members}: this mesh has the ranks 0 to {world.size - 1}")


def _known(name: str) -> Group | None:
    names = list(c10d.world().pg_names.items())
    return next((group for group, each in names if each == name), None)
