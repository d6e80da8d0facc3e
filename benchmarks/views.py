"""The mesh view as a front end meets it: what 64 changing ranks cost the kernel and the wire.

The kernel is busy with the cell that has the ranks change; the view lives beside it. What sending
alone costs in the same kernel is measured too: no view can cost less.
"""

import json
import queue
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from benchmarks.cells import ANSWER_S, Notebook, kernel, run
from benchmarks.measures import Figures, Scale
from benchmarks.timing import cpu_s, now

CHANGES = """%%mesh
import time
from monarch_nb.process import current
board = current.running().hosting.board
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    board.busy("step"); time.sleep(0.04); board.idle(); time.sleep(0.04)"""
FLOOR = """import os, threading, time
def tell(data, times, period_s):
    kernel = get_ipython().kernel
    for _ in range(times):
        time.sleep(period_s)
        content = {{"data": data, "comm_id": "a" * 32}}
        kernel.session.send(kernel.iopub_socket, "comm_msg", content, parent=None, ident=b"bench")
threading.Thread(target=tell, args=({data!r}, {times}, 0.1), daemon=True).start()"""
SETTLED_S = 2.0
WATCHED_S = 10.0
PARTS = ("strips", "curves", "failures", "actors")


@dataclass
class View:
    """A comm to the kernel, as the panel in the browser has one."""

    client: BlockingKernelClient
    comm: str
    subshell: str

    def say(self, **message: object) -> None:
        self.send("comm_msg", {"v": 1, "from": "bench", **message})

    def send(self, kind: str, data: dict[str, object]) -> None:
        content = {"comm_id": self.comm, "target_name": "monarch_nb.mesh", "data": data}
        message = self.client.session.msg(kind, content)
        message["header"]["subshell_id"] = self.subshell
        self.client.shell_channel.send(message)

    def updates(self, seconds: float) -> Iterator[dict[str, Any]]:
        """All that comes for the view meanwhile."""
        end = now() + seconds
        while (left := end - now()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                return
            if message["content"].get("comm_id") == self.comm:
                yield message


@contextmanager
def opened(client: BlockingKernelClient) -> Iterator[View]:
    """On a subshell, so that the kernel hears it beside its cell."""
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = client.control_channel.get_msg(timeout=ANSWER_S)["content"]["subshell_id"]
    view = View(client, uuid.uuid4().hex, subshell)
    view.send("comm_open", {})
    yield view
    view.say(type="bye")


def cost(notebook: Notebook, _scale: Scale) -> Figures:
    """Processor time of the kernel for an update of 64 ranks that all change, and its bytes; and
    for a message like it that is only sent."""
    with kernel(notebook) as client:
        for code in notebook.setup:
            run(client, code)
        pid = int(run(client, "import os; os.getpid()").strip())
        with opened(client) as view:
            client.execute(CHANGES.format(seconds=2 * WATCHED_S + 3 * SETTLED_S))
            time.sleep(SETTLED_S)
            start = cpu_s(pid)
            time.sleep(WATCHED_S)
            unseen_s = cpu_s(pid) - start
            view.say(type="hello", period_ms=100, parts=PARTS, mesh=None)
            list(view.updates(SETTLED_S))
            start = cpu_s(pid)
            messages = list(view.updates(WATCHED_S))
            seen_s = cpu_s(pid) - start
        if not messages:
            raise AssertionError("the view has heard nothing")
        run(client, "0")  # the cell has ended
        typical = sorted(messages, key=_size)[len(messages) // 2]["content"]["data"]
        floor_s = _floor_s(client, pid, typical, len(messages))
    return {
        "cpu": (seen_s - unseen_s) / len(messages),
        "floor": floor_s / len(messages),
        "bytes": sum(map(_size, messages)) / WATCHED_S,
        "rate": len(messages) / WATCHED_S,
    }


def _floor_s(client: BlockingKernelClient, pid: int, data: object, times: int) -> float:
    """What sending takes, beside a cell that blocks the kernel."""
    run(client, FLOOR.format(data=data, times=times))
    client.execute(f"time.sleep({WATCHED_S + SETTLED_S})")
    start = cpu_s(pid)
    time.sleep(WATCHED_S + SETTLED_S / 2)
    return cpu_s(pid) - start


def _size(message: dict[str, Any]) -> int:
    parts = ("header", "parent_header", "metadata", "content")
    return sum(len(json.dumps(message[part], default=str)) for part in parts)
