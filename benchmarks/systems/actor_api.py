"""Monarch's actor API, served by Monarch and by monarch_nb: one adapter for both.

Knows only the public names, which it is given; that both systems run it is itself a check.
Endpoints are plain `def`: Monarch is faster with these than with `async def`.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks import work
from benchmarks.measures import Figures, Scale, killed
from benchmarks.timing import now

BROADCAST_BYTES = 16 << 20
FIRST_CALL = """
from {package} import Actor, endpoint, shutdown_context, this_host

class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x

mesh = this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("echo", Echo)
print(sum(mesh.echo.call(7).get().values()), flush=True)
shutdown_context().get()
"""
OWNER = """
import sys
from {package} import Actor, endpoint, this_host
from benchmarks import work

class Busy(Actor):
    @endpoint
    def answer(self):
        pass

    @endpoint
    def spin(self, flag):
        work.spin(flag)

mesh = this_host().spawn_procs(per_host={{"gpus": 4}}).spawn("busy", Busy)
mesh.answer.call().get()
mesh.slice(gpus=1).spin.call_one(sys.argv[1]).get()
"""


@dataclass(frozen=True)
class Api:
    actor: type
    endpoint: Callable[..., Any]
    this_host: Callable[[], Any]


def probe_class(api: Api) -> type:
    """An actor class with every function of work.py as an endpoint."""

    def endpoint_of(method: str) -> Any:
        function = getattr(work, method)

        def run(_self: Any, *args: Any) -> Any:
            return function(*args)

        run.__name__ = method
        return api.endpoint(run)

    return type("Probe", (api.actor,), {name: endpoint_of(name) for name in work.METHODS})


class ActorRanks:
    def __init__(self, api: Api, probe: type, size: int) -> None:
        self.procs = api.this_host().spawn_procs(per_host={"gpus": size})
        self.mesh = self.procs.spawn("probe", probe)

    def one(self, method: str) -> Callable[..., Any]:
        first = self.mesh.slice(gpus=0)
        return lambda *args: getattr(first, method).call_one(*args).get()

    def each(self, method: str) -> Callable[..., list[Any]]:
        return lambda *args: list(getattr(self.mesh, method).call(*args).get().values())

    def flood(self, count: int) -> None:
        echo = self.mesh.slice(gpus=0).echo
        for future in [echo.call_one(i) for i in range(count)]:
            future.get()

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        return getattr(self.mesh.slice(gpus=rank), method).call_one(*args).get

    def down(self) -> None:
        self.procs.stop().get()


def broadcast(api: Api, scale: Scale) -> Figures:
    """Until a broadcast of 16 MiB to two ranks returns, when the one before has arrived."""
    ranks = ActorRanks(api, probe_class(api), 2)
    figures: Figures = {}
    for name, value in (
        ("bytes", bytes(BROADCAST_BYTES)),
        ("array", np.ones(BROADCAST_BYTES, "u1")),
    ):
        times = [_broadcast_s(ranks, value) for _ in range(scale.arrays + 2)]
        figures[name] = median(times[2:])
    ranks.down()
    return figures


def _broadcast_s(ranks: ActorRanks, value: Any) -> float:
    ranks.each("echo")(1)
    time.sleep(0.05)  # until what was lent is back
    start = now()
    ranks.mesh.length.broadcast(value)
    return now() - start


def first_call(package: str, scale: Scale) -> Figures:
    """From the start of a program, which never imports torch, to the first answer of two ranks."""
    return {"time": median(_first_call_s(package) for _ in range(scale.arrays))}


def _first_call_s(package: str) -> float:
    start = now()
    command = [sys.executable, "-c", FIRST_CALL.format(package=package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        answer = program.stdout.readline()
        elapsed = now() - start
        program.communicate()
    if answer != "14\n":
        raise AssertionError(f"answered {answer!r}")
    return elapsed


def owner(package: str, _scale: Scale) -> Figures:
    """From SIGKILL of a program that never imports torch and owns 4 ranks, one busy, until nothing
    of it runs."""
    return killed([sys.executable, "-c", OWNER.format(package=package)])
