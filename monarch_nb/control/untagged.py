"""Work of the controller that no notebook cell has asked for: a button of the mesh view."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from monarch_nb.process.instance import CallContext, here

if TYPE_CHECKING:
    from monarch_nb.control.client import Client

T = TypeVar("T")
NOBODY = 0
"""The tag of no cell."""


def on_behalf_of_nobody(client: Client, run: Callable[[], T]) -> T:
    """Run this as the root, under no cell's tag, whatever cell runs meanwhile."""

    def apart() -> T:
        here.set(CallContext(client.root, (), (), 0, NOBODY))
        return run()

    return copy_context().run(apart)
