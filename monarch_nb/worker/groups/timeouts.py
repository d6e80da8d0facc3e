"""What a rank remembers of the process groups of `torch.distributed`, by name.

Gloo counts a group's timeout in C++, where the time that a debugger pauses a member counts too.
So gloo gets a longer one, and waits in Python count that of the user. Groups of the name that one
had before, a script's for instance, take its place.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Final, NamedTuple

from monarch_nb.worker.groups.c10d import Backend, Group, backends_of, is_gloo

SLACK: Final = dt.timedelta(hours=8)
"""So much longer gloo waits by itself: how long a pause may last, and what DDP waits in C++."""


class Known(NamedTuple):
    """Of one group: the user's timeout, and when it was made (`time.time_ns`)."""

    timeout: dt.timedelta | None
    since_ns: int


class GroupTimeouts:
    """Of all groups of this process."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self.only_gloo = True
        """Whether every group so far is gloo's, whatever the device. A wait for other backends, a
        stream of CUDA for instance, means something else."""

    def add(self, name: str, group: Group) -> None:
        backends = backends_of(group)
        gloo = [each for each in backends if is_gloo(each)]
        self.only_gloo = self.only_gloo and len(gloo) == len(backends) > 0
        self._known[name] = Known(_taken_over(gloo), time.time_ns())

    def set_timeout(self, name: str, group: Group, timeout: dt.timedelta) -> None:
        for backend in backends_of(group):
            backend._set_default_timeout(timeout + SLACK if is_gloo(backend) else timeout)
        self._known[name] = Known(timeout, self.since_ns(name))

    def renewed(self, name: str) -> None:
        """Note that the connections of a group are of now."""
        self._known[name] = Known(self.timeout(name), time.time_ns())

    def timeout(self, name: str) -> dt.timedelta | None:
        """Return the user's timeout of the group; the longest of all for one that is unknown."""
        if (known := self._known.get(name)) is not None:
            return known.timeout
        all_known = [each.timeout for each in self._known.values() if each.timeout is not None]
        return max(all_known, default=None)

    def since_ns(self, name: str) -> int:
        known = self._known.get(name)
        return 0 if known is None else known.since_ns


def _taken_over(backends: list[Backend]) -> dt.timedelta | None:
    timeouts = []
    for backend in backends:
        timeout = backend.options._timeout
        if timeout < SLACK:
            backend._set_default_timeout(timeout + SLACK)
        else:
            timeout -= SLACK
        timeouts.append(timeout)
    return max(timeouts, default=None)
