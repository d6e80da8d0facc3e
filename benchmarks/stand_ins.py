"""Hosts without ranks: real gateways and sockets, all in this process, that answer every cast.

They share a processor, so each waits for the answers of those below for as long as it takes.
Told on standard input: the controller's number and address, how many processes each host has, and
for each host its number and secret. Says on standard output where each of them listens.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from monarch_nb.core.casting import Cast
from monarch_nb.core.wire import frames
from monarch_nb.core.wire.frames import HEADER
from monarch_nb.net import wire
from monarch_nb.net.hosts import gateway as gateways_of_hosts
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Timing
from monarch_nb.net.loop import LoopThread

TIMING = Timing(pulse_s=2.0, silent_s=20.0, outage_s=120.0)
ANSWER = b"\x80\x05N."  # pickled None


class StandIn(Gateway):
    """A host, each of whose processes answers at once."""

    def _hand_out(self, cast: Cast) -> None:
        header = frames.parse_header(bytes(memoryview(cast.bodies[0])[: HEADER.size]))
        _, _, _, _, tag, _, caller, reply = header
        for run in cast.runs:
            for process, rank in run.members():
                answer = HEADER.pack(frames.REPLY, 0, 0, rank, tag, reply, process, 0) + ANSWER
                self._send_all(caller, self._folder.take(process, caller, [answer]))


def main() -> None:
    gateways_of_hosts.TREE_HOLD_S = gateways_of_hosts.HOLD_S = 10.0
    told: dict[str, Any] = json.load(sys.stdin)
    thread = LoopThread("hosts")
    with tempfile.TemporaryDirectory() as run_dir:
        gateways = []
        for number, secret in told["hosts"]:
            gateway = StandIn(Path(run_dir), number, thread.loop, TIMING, on_lost=lambda *_: None)
            listener = wire.listen_for_hosts("tcp://127.0.0.1:*")
            thread.loop.call(lambda g=gateway, at=listener: g.listen(at))
            controller, at = told["controller"], [told["address"]]
            thread.loop.call(
                lambda g=gateway, s=secret: g.serve(controller, Secret.from_text(s), at)
            )
            gateways.append(gateway)
            print(wire.listens_at(listener), flush=True)
        tick = lambda now: [each._tick(now) for each in gateways]  # noqa: E731
        thread.loop.call(lambda: thread.loop.every(TIMING.pulse_s / 2, tick))
        parent = os.getppid()
        while os.getppid() == parent:
            threading.Event().wait(1)


if __name__ == "__main__":
    main()
