"""End what waits in a group of gloo in C++, by breaking the group on purpose.

A time-out of a `recv` closes all connections of its group: every operation of this process in it
fails at once, and so do those of its peers. So a `recv` that nobody answers, for a millisecond,
ends a wait that no signal reaches. Done only after an interrupt, and when a group is left for good.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final

from monarch_nb.worker.groups.c10d import Group, backends_of, is_gloo, load
from monarch_nb.worker.groups.flight_recorder import LAST, recorded

TAG: Final = 0x6D6E62  # of a message that nobody sends
MOMENT: Final = dt.timedelta(milliseconds=1)
STUCK_S: Final = 1.5
"""A collective that DDP has begun so long ago is why `backward` does not end."""
_ENGINE: Final = "torch/autograd/graph.py"


def abort_groups(groups: Iterable[Group]) -> None:
    """Break those of gloo that have peers. Returns at once. Any thread."""
    torch = load("torch")
    for group in groups:
        for backend in filter(is_gloo, backends_of(group)):
            if backend.size() > 1:
                peer = (backend.rank() + 1) % backend.size()
                with contextlib.suppress(Exception):  # as it should; or it is broken already
                    work = backend.recv([torch.empty(1)], peer, TAG)
                    getattr(type(work).wait, "__wrapped__", type(work).wait)(work, MOMENT)


def is_stuck_in_backward() -> bool:
    """Whether the main thread is in a backward pass that waits for a collective of gloo."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None or not frame.f_code.co_filename.endswith(_ENGINE):
        return False
    before_ns = time.time_ns() - int(STUCK_S * 1e9)
    return any(
        not each["retired"] and each["time_created_ns"] < before_ns
        for each in recorded()[-LAST:]
        if each["profiling_name"].startswith("gloo:")
    )
