"""Actors that do what no actor should."""

import asyncio
import os
import signal
import sys
import threading
import time

from monarch_nb import Actor, concurrent_endpoint, context, current_rank, endpoint, this_host
from tests import inside


class Worker(Actor):
    """Sync: the first one of a rank lives on its main thread."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def length(self, value) -> int:
        return len(value)

    @endpoint
    def keep(self, peer) -> None:
        self.peer = peer

    @endpoint
    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @endpoint
    def sleep_unless(self, rank: int, seconds: float) -> int:
        """Ranks but this one answer at once."""
        found = current_rank()["gpus"]
        if found == rank:
            time.sleep(seconds)
        return found

    @endpoint
    def spin(self) -> None:
        while True:
            pass

    @endpoint
    def log(self, path: str, line: str, seconds: float = 0.0) -> str:
        """Append to a ledger: proves how often a call was executed."""
        time.sleep(seconds)
        with open(path, "a") as file:
            file.write(f"{line}\n")
        return line

    @endpoint
    def grow(self, mib: int) -> int:
        self.hoard = bytearray(mib << 20)
        return sum(self.hoard[:: 1 << 12])

    @endpoint
    def do(self, code: str):
        """Run a statement or several; the value of `result`."""
        names = {"self": self}
        exec(code, {**globals(), **names}, names)
        return names.get("result")


class AsyncWorker(Actor):
    """Async: a thread with an event loop."""

    def __init__(self) -> None:
        self.count = 0
        self.naps = 0

    @concurrent_endpoint
    async def nap(self, seconds: float) -> float:
        self.naps += 1
        await asyncio.sleep(seconds)
        return seconds

    @concurrent_endpoint
    async def napping(self) -> int:
        return self.naps

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @endpoint
    async def sleep(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @endpoint
    async def spin(self) -> None:
        while True:
            pass


class Doer(AsyncWorker):
    @endpoint
    async def do(self, code: str) -> None:
        exec(code, {"sys": sys, "exit": sys.exit})


class Fussy(Actor):
    """Does not like some ranks."""

    def __init__(self, bad: tuple[int, ...], how: str, ledger: str) -> None:
        self.ledger = ledger
        rank = current_rank()["gpus"]
        if rank in bad:
            if how == "raise":
                raise ValueError(f"rank {rank} does not want to")
            exec(how)

    @endpoint
    def hello(self) -> int:
        return current_rank()["gpus"]

    def __cleanup__(self, error) -> None:
        with open(self.ledger, "a") as file:
            file.write(f"{current_rank()['gpus']}\n")


class Caller(Actor):
    """Calls others from inside a rank."""

    @endpoint
    def call_sleep(self, workers, seconds: float):
        return workers.sleep.call(seconds).get()


class Boss(Actor):
    """Was given other actors when it was made."""

    def __init__(self, workers) -> None:
        self.workers = workers

    @endpoint
    def ask(self) -> int:
        return sum(self.workers.add.call(1).get(timeout=10).values())

    @endpoint
    def spawn_deep(self) -> int:
        return len(
            context().actor_instance.proc_mesh.spawn("deep", Worker).add.call().get(timeout=10)
        )

    @endpoint
    def heal_them(self) -> None:
        self.workers.heal()


class Holder(Actor):
    """Keeps an array."""

    def __init__(self, array) -> None:
        self.array = array

    @endpoint
    def total(self) -> float:
        return float(self.array.sum())


class Fragile(Worker):
    """Cannot be made while a file says so."""

    def __init__(self, switch: str) -> None:
        super().__init__()
        if os.path.exists(switch):
            with open(switch) as file:
                order = file.read()
            if order == "exit":
                os._exit(7)
            raise ValueError("still broken")


class Grouped(Actor):
    """Makes a process group at every use, as a training loop does after a heal."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def reduce(self) -> int:
        import torch
        from torch import distributed

        if not distributed.is_initialized():
            distributed.init_process_group("gloo")
        value = torch.tensor([distributed.get_rank()])
        distributed.all_reduce(value)
        return int(value.item())


class Leader(Actor):
    """Owns a mesh."""

    @endpoint
    def up(self, ranks: int) -> list[int]:
        self.procs = this_host().spawn_procs(per_host={"gpus": ranks})
        self.workers = self.procs.spawn("deep", Worker)
        return list(self.workers.pid.call().get().values())

    @endpoint
    def total(self) -> int:
        return sum(self.workers.add.call(1).get().values())

    @endpoint
    def pids(self) -> list[int]:
        return list(self.workers.pid.call().get().values())

    @endpoint
    def lost(self) -> list[int]:
        return inside.lost(self.procs)

    @endpoint
    def heal_and_total(self) -> int:
        self.procs.heal()
        return sum(self.workers.add.call(1).get().values())

    def __supervise__(self, failure) -> bool:
        return True


__all__ = ["AsyncWorker", "Caller", "Doer", "Fussy", "Worker", "signal", "sys", "threading"]
