"""Which thread of the kernel hears what a page says through a comm.

Pages send over a subshell so that a busy kernel hears them. ipykernel since 7.4 does not follow:
it takes a message to the loop that has last sent something through the comm, for a widget the one
that runs cells, where it waits until the cell ends.
"""

from __future__ import annotations

from typing import Any


def hear_as_sent(comm: Any) -> None:
    """Let messages for this comm go to the subshell that the page names."""
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, named: named
