"""What a rank remembers of the process groups of `torch.distributed`, by name.

Gloo counts a group's timeout in C++, where the time that a member is held in a debugger counts too.
So gloo gets a longer one, and waits in Python count that of the user. Groups of the name that one
had before, a script's for instance, take its place.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, Final, NamedTuple

SLACK: Final = dt.timedelta(hours=8)
"""So much longer gloo waits by itself: how long a pause may last, and what DDP waits in C++."""
_GLOO: Final = "ProcessGroupGloo"


class Fact(NamedTuple):
    """Of one group: the user's timeout, and when it was made (`time.time_ns`)."""

    timeout: dt.timedelta | None
    since_ns: int


class GroupFacts:
    """Of all groups of this process."""

    def __init__(self) -> None:
        self._facts: dict[str, Fact] = {}
        self.only_gloo = True
        """Whether every group so far is gloo's, whatever the device. A wait for other backends, a
        stream of CUDA for instance, means something else."""

    def add(self, name: str, group: Any) -> None:
        """A group has been made, or put back."""
        backends = backends_of(group)
        gloo = [each for each in backends if is_gloo(each)]
        self.only_gloo = self.only_gloo and len(gloo) == len(backends) > 0
        self._facts[name] = Fact(_taken_over(gloo), time.time_ns())

    def set_timeout(self, name: str, group: Any, timeout: dt.timedelta) -> None:
        """The user wants another one."""
        for backend in backends_of(group):
            backend._set_default_timeout(timeout + SLACK if is_gloo(backend) else timeout)
        self._facts[name] = Fact(timeout, self.since_ns(name))

    def timeout(self, name: str) -> dt.timedelta | None:
        """What the user's timeout of the group is; the longest of all for one that is unknown."""
        if (fact := self._facts.get(name)) is not None:
            return fact.timeout
        known = [fact.timeout for fact in self._facts.values() if fact.timeout is not None]
        return max(known, default=None)

    def since_ns(self, name: str) -> int:
        """When the group of this name was made; 0 if nobody knows it."""
        fact = self._facts.get(name)
        return 0 if fact is None else fact.since_ns


def backends_of(group: Any) -> list[Any]:
    """What a group uses on its devices, each once."""
    found: dict[int, Any] = {}
    for device in group._device_types:
        backend = group._get_backend(device)
        found[id(backend)] = backend
    return list(found.values())


def is_gloo(backend: Any) -> bool:
    """Whether it is gloo's own, not wrapped for debugging."""
    return type(backend).__name__ == _GLOO


def _taken_over(backends: list[Any]) -> dt.timedelta | None:
    """The user's timeout, which gloo counts no more."""
    timeouts = []
    for backend in backends:
        timeout = backend.options._timeout
        if timeout < SLACK:
            backend._set_default_timeout(timeout + SLACK)
        else:
            timeout -= SLACK
        timeouts.append(timeout)
    return max(timeouts, default=None)
