"""Who is to hear that a client has started in this process; the one list of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_listeners: Final[list[Callable[[], object]]] = []


def when_started(callback: Callable[[], object]) -> Callable[[], None]:
    """Call back whenever a client has started, so that a notebook listens from its first moment.

    Returns what takes the callback back.
    """
    _listeners.append(callback)
    return lambda: _listeners.remove(callback)


def tell() -> None:
    for callback in _listeners:
        callback()
