"""The agent's one thread waits here: descriptors with a callable each, and the next deadline.

zmq sockets take part by their descriptor, which is edge-triggered: their callables read until
nothing is left.
"""

from __future__ import annotations

import select
from collections.abc import Callable

_LONGEST_S = 3600.0


class Loop:
    """epoll, so that a thousand silent ranks cost nothing."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is readable or hung up."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def want_write(self, fd: int, *, wanted: bool) -> None:
        """Call back also when `fd` is writable, from now on or no longer."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def remove(self, fd: int) -> None:
        """Stop watching `fd`. Before it is closed: a copy in another process would keep it here."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None) -> None:
        """Run the callbacks of what is ready, after at most `timeout_s`."""
        limit = _LONGEST_S if timeout_s is None else min(max(timeout_s, 0.0), _LONGEST_S)
        for fd, _ in self._epoll.poll(limit):
            callback = self._callbacks.get(fd)  # an earlier one of this round may have removed it
            if callback is not None:
                callback()

    def close(self) -> None:
        self._callbacks.clear()
        self._epoll.close()
