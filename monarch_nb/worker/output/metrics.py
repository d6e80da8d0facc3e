"""What a rank logs, on its way to the controller: few messages, and none that nobody has room for.

Rules: a message at most every 100 ms (on meshes of more than 100 ranks, every millisecond times
their number), and one when a cell ends. The controller answers each; while it owes several answers
nothing is sent, and what is logged meanwhile is folded into fewer points.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from monarch_nb.core.curves import to_wire
from monarch_nb.core.runs import NO_RUN, RunKey
from monarch_nb.net.threads import helper_thread
from monarch_nb.services.metrics import Batch, Recorder

TICK_S: Final = 0.1
TICK_OF_RANK_S: Final = 0.001
MAX_UNANSWERED: Final = 4

Send = Callable[[int, dict[str, object]], None]


class MetricsPump:
    """Sends what a recorder has gathered; `send(tag, content)` gets it by notebook cell."""

    def __init__(self, recorder: Recorder, send: Send, ranks: int) -> None:
        self._recorder = recorder
        self._send = send
        self._tick_s = max(TICK_S, ranks * TICK_OF_RANK_S)
        self._unanswered = 0
        self._is_awake = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._sending = threading.Lock()
        recorder.attach(self.wake)

    def wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        if self._thread is None:
            self._thread = helper_thread(self._run, "monarch-metrics")
            self._thread.start()
        self._wake.put(None)

    def drain(self) -> None:
        if not self._recorder or self._unanswered >= MAX_UNANSWERED:
            return
        with self._sending:
            for tag, content in _contents(self._recorder.take()):
                self._unanswered += 1
                self._send(tag, content)

    def on_taken(self) -> None:
        """Count a message that the controller has taken. Inbox thread."""
        self._unanswered = max(0, self._unanswered - 1)
        if self._recorder:
            self.wake()

    def begin_anew(self) -> None:
        """Send to a controller that owes no answer yet. Inbox thread."""
        self._unanswered = 0
        self.wake()

    def _run(self) -> None:
        last = 0.0
        while True:
            self._wake.get()
            time.sleep(max(0.0, last + self._tick_s - time.monotonic()))
            self._is_awake = False
            with contextlib.suppress(Exception):  # the link is gone, and so will this process be
                self.drain()
            last = time.monotonic()


def _contents(batch: Batch) -> list[tuple[int, dict[str, object]]]:
    found: dict[tuple[int, RunKey], dict[str, Any]] = {}
    for (tag, run, name), samples in batch.samples.items():
        content = found.setdefault((tag, run), {"points": {}, "run": list(run)})
        content["points"][name] = [to_wire(sample) for sample in samples]
    if batch.left_out:
        left_out = [batch.left_out, batch.first_left_out]
        found.setdefault((0, NO_RUN), {"points": {}})["left_out"] = left_out
    return [(tag, content) for (tag, _), content in found.items()]
