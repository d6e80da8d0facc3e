"""The actors that the tests spawn; ranks import them from here by name."""

import asyncio
import os
import sys
import threading
import time
from typing import Any

from monarch_nb import (
    Actor,
    Port,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
)


class Counter(Actor):
    """A number."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int = 1) -> int:
        """Count."""
        self.value += amount
        return self.value

    @endpoint
    def get(self) -> int:
        """Read."""
        return self.value

    @endpoint
    def where(self) -> tuple[dict[str, int], dict[str, int]]:
        """Coordinates and sizes of what was called."""
        return dict(current_rank()), current_size()

    @endpoint
    def pid(self) -> int:
        """The process."""
        return os.getpid()

    @endpoint
    def fail(self, text: str = "bad") -> None:
        """Raise."""
        raise ValueError(text)

    @endpoint
    def fail_on(self, rank: int) -> int:
        """Raise on one rank."""
        if current_rank().rank == rank:
            raise ValueError(f"bad on {rank}")
        return current_rank().rank

    @endpoint
    def nap(self, seconds: float) -> float:
        """Be busy."""
        time.sleep(seconds)
        return seconds

    @endpoint
    def announced_nap(self, started: Port[str], seconds: float) -> None:
        """Say that it began, then be busy."""
        started.send("started")
        time.sleep(seconds)

    @endpoint
    def answer_or_hold(self, rank: int, started: Port[int]) -> int:
        """Answer, but on one rank be busy."""
        if current_rank().rank == rank:
            started.send(os.getpid())
            time.sleep(60)
        return current_rank().rank

    @endpoint
    def echo(self, value: Any) -> Any:
        """Give back."""
        return value

    @endpoint
    def call_back(self, function: Any, *args: Any) -> Any:
        """Run something here."""
        return function(*args)

    @endpoint(explicit_response_port=True)
    def replies(self, port: Port[int], count: int) -> str:
        """Answer `count` times."""
        for i in range(count):
            port.send(i)
        return "ignored"

    @endpoint(explicit_response_port=True)
    def refuses(self, port: Port[int], text: str) -> None:
        """Answer with an exception."""
        port.exception(ValueError(text))

    def plain(self, n: int) -> int:
        """No endpoint."""
        return self.value + n

    def plain_port(self, port: Port[int], n: int) -> None:
        """No endpoint, wants a port."""
        port.send(self.value + n)

    async def plain_async(self) -> int:
        """No endpoint, and of the other kind."""
        return self.value


class AsyncCounter(Actor):
    """A number on an event loop."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.log: list[Any] = []
        self.gates: dict[str, asyncio.Event] = {}

    @endpoint
    async def add(self, amount: int = 1) -> int:
        """Count."""
        await asyncio.sleep(0)
        self.value += amount
        return self.value

    @endpoint
    async def slow(self, name: str, turns: int) -> None:
        """Note the start and, some turns of the loop later, the end."""
        self.log.append(("start", name))
        for _ in range(turns):
            await asyncio.sleep(0)
        self.log.append(("end", name))

    @endpoint
    async def read(self) -> list[Any]:
        """What was noted."""
        return self.log

    @concurrent_endpoint
    async def wait_for(self, gate: str) -> str:
        """Wait until somebody opens the gate."""
        self.log.append(("wait", gate))
        await self.gates.setdefault(gate, asyncio.Event()).wait()
        return gate

    @concurrent_endpoint
    async def numbered(self, number: int) -> int:
        """Note the number before the first await."""
        self.log.append(number)
        await asyncio.sleep(0)
        return number

    @endpoint
    async def open_gate(self, gate: str) -> None:
        """Let go those who wait."""
        self.gates.setdefault(gate, asyncio.Event()).set()

    @concurrent_endpoint
    async def fail(self) -> None:
        """Raise."""
        raise ValueError("bad")

    @concurrent_endpoint(explicit_response_port=True)
    async def replies(self, port: Port[int], count: int) -> None:
        """Answer `count` times."""
        for i in range(count):
            port.send(i)

    async def plain_async(self, n: int) -> int:
        """No endpoint."""
        return self.value + n


class Witness(Actor):
    """Says on what thread things run."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.local.made_in = threading.get_ident()
        self.threads = [threading.current_thread().name]

    @endpoint
    def look(self) -> tuple[str, bool, bool]:
        """Thread name, whether a loop runs, whether thread-locals of the constructor are there."""
        try:
            asyncio.get_running_loop()
            has_loop = True
        except RuntimeError:
            has_loop = False
        stable = getattr(self.local, "made_in", None) == threading.get_ident()
        return threading.current_thread().name, has_loop, stable

    @endpoint
    def ident(self) -> int:
        """The thread's number."""
        return threading.get_ident()


class AsyncWitness(Actor):
    """The same on an event loop."""

    @endpoint
    async def look(self) -> tuple[str, bool]:
        """Thread name, and whether a loop runs."""
        return threading.current_thread().name, asyncio.get_running_loop().is_running()

    @endpoint
    async def in_a_task(self) -> str:
        """The name of the actor as a task that it starts sees it."""

        async def look() -> str:
            return context().actor_instance.name

        return await asyncio.create_task(look())


class Process(Actor):
    """Tells of the process it lives in."""

    @endpoint
    def env(self, *names):
        """Some of its environment."""
        return tuple(os.environ.get(name) for name in names)

    @endpoint
    def all_env(self):
        """All of it."""
        return dict(os.environ)

    @endpoint
    def processors(self):
        """Where it may run."""
        return sorted(os.sched_getaffinity(0))

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def in_main(self, name):
        """A variable of `__main__`, where cells run."""
        return vars(sys.modules["__main__"]).get(name)

    @endpoint
    def seen(self, name):
        """What a bootstrap function has left in `sys`."""
        return getattr(sys, name, None)

    @endpoint
    def rank(self):
        """Where it was spawned."""
        return dict(context().actor_instance.rank)


def over(mesh, method, *args):
    """The values of an endpoint of `Process` on the mesh."""
    return getattr(mesh.spawn("process", Process), method).call(*args).get().values()
