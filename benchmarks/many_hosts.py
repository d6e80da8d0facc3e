"""A call to eight ranks on each of many hosts: what it takes of the controller.

The hosts are stand-ins, real gateways and sockets in a process of their own (`stand_ins.py`) whose
ranks answer at once, so the time that all takes is mostly theirs and says nothing; the processor
time of the controller is what is measured, and how many sockets it has.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measures import Figures, Scale
from benchmarks.stand_ins import TIMING
from benchmarks.timing import cpu_s, median
from monarch_nb.config import Config
from monarch_nb.core.shape.extent import NDSlice, Shape
from monarch_nb.core.wire.frames import ACTOR_BIT, CALL, HOST_SHIFT, SERVICE_BIT
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import Gateway, GatewayRelay
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.process.futures.calls import GatherCall, Target
from monarch_nb.process.futures.future import make
from monarch_nb.process.payloads import Payload
from monarch_nb.process.process import Proc

PER_HOST = 8
COUNTS = (10, 100, 1000)
OWN = 1 << HOST_SHIFT | 5
GROWS_S = 60.0


class StandInState:
    """Stands in for the state of a mesh: has the fields that a call reads."""

    number, version, name, internal = ACTOR_BIT | 77, 0, "stand-ins", True
    processes: tuple[int, ...] = ()


class Controller:
    """The messaging of a controller, without the rest of it."""

    def __init__(self, run_dir: Path, hosts: int) -> None:
        agent = 1 << HOST_SHIFT | SERVICE_BIT | 2
        self.proc = Proc(process=OWN, agent=agent, controller=OWN, run_dir=run_dir, config=Config())
        self.links = self.proc.links
        self.gateway = Gateway(
            run_dir, 1, self.links.loop, TIMING, on_lost=_fail, here={OWN: self.links.take}
        )
        self.links.relay_through(GatewayRelay(self.gateway, OWN))
        self.proc.start([])
        listener = wire.listen_for_hosts("tcp://127.0.0.1:*")
        self.address = wire.listens_at(listener)
        self.links.loop.call(partial(self.gateway.listen, listener))
        self.secrets = {number: Secret.new() for number in range(2, 2 + hosts)}
        processes = [n << HOST_SHIFT | 16 + each for n in self.secrets for each in range(PER_HOST)]
        count = len(processes)
        shape = Shape(["ranks"], NDSlice(offset=0, sizes=[count], strides=[1]))
        state: Any = StandInState()
        self.target = Target(state, "echo", processes, range(count), shape)

    def call(self) -> None:
        """Call all ranks, and wait for their answers."""
        call = make(GatherCall)
        call._begin(self.proc, self.target, 0)
        call.expect()
        receivers = self.target.receivers(self.proc)
        payload = Payload(b"x" * 200)
        self.proc.cast(receivers, CALL, self.target.port, payload, reply=call.port)
        call.get(60)

    @property
    def sockets(self) -> int:
        return len(psutil.Process().net_connections("tcp"))

    def close(self) -> None:
        self.gateway.close(0.1)
        self.proc.close()


def _fail(host: int, why: str, _silent_s: float | None) -> None:
    raise AssertionError(f"host {host} is lost: {why}")


@contextmanager
def controller_of(hosts: int) -> Iterator[Controller]:
    """Link so many stand-ins; yield their controller when few of them have links to it."""
    with tempfile.TemporaryDirectory() as run_dir, contextlib.ExitStack() as opened:
        made = Controller(Path(run_dir), hosts)
        told = {
            "controller": 1,
            "address": made.address,
            "hosts": [(number, each.to_text()) for number, each in made.secrets.items()],
        }
        command = [sys.executable, "-m", "benchmarks.stand_ins"]
        child = opened.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        opened.callback(child.kill)
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin as stdin:
            json.dump(told, stdin)
        for number, secret in made.secrets.items():
            at = child.stdout.readline().strip()
            made.links.loop.call(partial(made.gateway.link, number, secret, [at], []))
        opened.callback(made.close)
        _wait_until_grown(made, min(hosts, Config.fan_out))
        yield made


def _wait_until_grown(made: Controller, connections: int) -> None:
    deadline = time.monotonic() + GROWS_S
    while made.sockets > connections + 1:  # and the listener
        if time.monotonic() > deadline:
            raise AssertionError(f"{made.sockets} sockets after {GROWS_S:.0f} s")
        time.sleep(0.1)


def many_hosts(scale: Scale) -> Figures:
    """A call to all ranks of 10, 100, and 1 000 hosts: processor time of the controller."""
    figures: Figures = {}
    for count in COUNTS:
        with controller_of(count) as made:
            for _ in range(5):
                made.call()
            spent = []
            for _ in range(max(10, scale.casts // count)):
                before = cpu_s(os.getpid())
                made.call()
                spent.append(cpu_s(os.getpid()) - before)
            figures[f"cpu_{count}"] = median(spent)
            figures["sockets"] = float(made.sockets)
    return figures
