"""Who is running, and in which message: `context()`, `current_rank()`, `current_size()`.

Rule: everything a user reads is built on demand from what `instance.here` has of the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.process import current
from monarch_nb.process.instance import Instance, here


def current_instance() -> Instance:
    """Return the actor that runs in this context, or the process's root."""
    found = here.get()
    return current.runtime().root if found is None else found.instance


def current_sender() -> Instance | None:
    """Return the actor that runs in this context, if it wants to be told what nobody got."""
    found = here.get()
    return found.instance if found is not None and found.instance.wants_returns else None


def current_tag() -> int:
    """Return the number of the notebook cell on whose behalf this context runs; 0 for none."""
    found = here.get()
    return current.runtime().root.tag if found is None else found.tag


@final
@dataclass(frozen=True)
class Context:
    """`actor_instance`: who runs; `message_rank`: where in the mesh or slice that was called."""

    actor_instance: Instance
    message_rank: Point


def context() -> Context:
    """Return the current actor and its place in its message; starts the client at first use.

    Example:
        >>> context().actor_instance.name          # doctest: +SKIP
        'root'
    """
    return Context(current_instance(), current_rank())


def current_rank() -> Point:
    """Return the position in the mesh or slice that was called: `current_rank()["gpus"]`."""
    found = here.get()
    if found is None:
        return current.runtime().root.rank
    return Point(found.rank, Extent(found.labels, found.sizes))


def current_size() -> dict[str, int]:
    """Return the sizes of the same mesh or slice: `{"hosts": 1, "gpus": 4}`."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """Return the full address of the running actor, as text."""
    return str(current_instance().actor_id)
