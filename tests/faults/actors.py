"""Actors that do what no actor should."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from monarch_nb import Actor, current_rank, endpoint


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


__all__ = ["AsyncWorker", "Caller", "Doer", "Fussy", "Worker", "signal", "sys", "threading"]
