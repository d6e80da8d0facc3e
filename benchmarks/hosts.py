"""Between hosts: calls, casts, large values, and how long hosts take to come up. Ours, with the
floor of each over plain TCP.

The hosts are workers of this machine on loopback: what is measured is the way through two gateways
and its encryption, not a network.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from benchmarks.measures import ARRAY_FLOATS, Figures, Scale
from benchmarks.timing import cpu_s, median, median_time, now, time_of, times_of
from monarch_nb import Actor, RDMABuffer, attach_to_workers, endpoint

PER_HOST = 4
MEDIUM = 32 << 20
SPAWNED_HOSTS, SPAWNED_PER_HOST = 4, 8
WORKER = """
import threading
from monarch_nb import start_worker_loop_forever
print(start_worker_loop_forever(address="tcp://127.0.0.1:*").get(), flush=True)
threading.Event().wait()
"""


class Caller(Actor):
    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def time_of_calls(self, other: Any, count: int) -> float:
        return median_time(lambda: other.echo.call_one(1).get(), count)


class Echo(Actor):
    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def length(self, value: bytes) -> int:
        return len(value)


class Holder(Actor):
    @endpoint
    def last(self, array: Any) -> float:
        return float(array[-1])

    @endpoint
    def hold(self) -> None:
        self.held = np.ones(ARRAY_FLOATS, np.float32)

    @endpoint
    def change(self, value: float) -> Any:
        self.held[-1] = value
        return self.held

    @endpoint
    def offer(self) -> RDMABuffer:
        self.kept = np.ones(ARRAY_FLOATS * 4, np.uint8)
        return RDMABuffer(memoryview(self.kept))


class Ready(Actor):
    @endpoint
    def version(self) -> str:
        import torch

        return torch.__version__


@contextmanager
def workers(count: int) -> Iterator[list[str]]:
    """Offer hosts, with keys of their own; yield their addresses."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["MONARCH_NB_HOME"] = home  # this process is for one measure
        command = [sys.executable, "-c", WORKER]
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        try:
            yield [each.stdout.readline().strip() for each in processes if each.stdout]
        finally:
            for each in processes:
                each.kill()
                each.wait()


def remote_call(scale: Scale) -> Figures:
    """A call to a rank of another host, from here and from a rank of a third."""
    with workers(2) as addresses:
        callers = attach_to_workers(workers=addresses).spawn_procs().spawn("callers", Caller)
        first, second = callers.slice(hosts=0), callers.slice(hosts=1)
        second.echo.call_one(1).get()
        here = median_time(lambda: first.echo.call_one(1).get(), scale.calls)
        there: float = first.time_of_calls.call_one(second, scale.calls).get()
    return {"controller": here, "hosts": there}


def remote_cast(scale: Scale) -> Figures:
    """A call to all ranks of two hosts, and what it takes of the controller's processor."""
    with workers(2) as addresses:
        hosts = attach_to_workers(workers=addresses)
        echoes = hosts.spawn_procs(per_host={"gpus": PER_HOST}).spawn("echoes", Echo)
        call = lambda: echoes.echo.call(1).get()  # noqa: E731
        seconds = median_time(call, scale.casts)
        spent = cpu_s(os.getpid())
        for _ in range(scale.casts):
            call()
        spent = cpu_s(os.getpid()) - spent
        medium, one = bytes(MEDIUM), echoes.slice(hosts=0, gpus=0)
        of_one = median_time(lambda: one.length.call_one(medium).get(), scale.arrays)
        of_all = median_time(lambda: echoes.length.call(medium).get(), scale.arrays)
    return {
        "time": seconds,
        "cpu": spent / scale.casts,
        "medium_one": of_one,
        "medium_times": of_all / of_one,
    }


def remote_data(scale: Scale) -> Figures:
    """256 MB to a rank of another host, from it, and read from its memory."""
    array, room = np.ones(ARRAY_FLOATS, np.float32), np.zeros(ARRAY_FLOATS * 4, np.uint8)
    with workers(1) as addresses:
        holder = attach_to_workers(workers=addresses).spawn_procs().spawn("holder", Holder)
        buffer = holder.offer.call_one().get()
        holder.hold.call_one().get()
        serials = count(2)

        def fetch() -> None:
            serial = next(serials)
            if holder.change.call_one(serial).get()[-1] != serial:
                raise AssertionError("that is an earlier result")

        works: dict[str, Callable[[], Any]] = {
            "argument": lambda: holder.last.call_one(array).get(),
            "result": fetch,
            "read": lambda: buffer.read_into(memoryview(room)).get(),
        }
        seconds = {name: median_time(work, scale.arrays) for name, work in works.items()}
        if room[-1] != 1:
            raise AssertionError("the bytes that came are not those that were there")
    return {name: array.nbytes / each for name, each in seconds.items()}


def remote_up(_scale: Scale) -> Figures:
    """Attach hosts and spawn ranks that have torch, until all have answered."""
    with workers(SPAWNED_HOSTS) as addresses:
        start = now()
        procs = attach_to_workers(workers=addresses).spawn_procs(
            per_host={"gpus": SPAWNED_PER_HOST}
        )
        procs.spawn("ready", Ready).version.call().get()
        return {"time": now() - start}


# ------------------------------------------------------------------------------------------- raw


def raw_call(scale: Scale) -> Figures:
    """One byte there and back, over TCP, between two Python processes."""
    with _connected(_send_back) as peer:
        seconds = median_time(partial(_ping, peer), scale.calls)
    return {"controller": seconds, "hosts": seconds}


def raw_data(scale: Scale) -> Figures:
    """256 MB over one TCP connection, not encrypted, into memory that was used before."""
    size = ARRAY_FLOATS * 4
    room = memoryview(bytearray(size))

    def move(peer: socket.socket) -> None:
        peer.sendall(b"g")
        got = 0
        while got < size:
            got += peer.recv_into(room[got:])

    with _connected(partial(_send_many, size)) as peer:
        move(peer)
        speed = size / median(times_of(partial(move, peer), scale.arrays, within_s=45))
    return {"argument": speed, "result": speed, "read": speed}


def raw_up(_scale: Scale) -> Figures:
    """The import of torch in a new process."""
    command = [sys.executable, "-c", "import torch"]
    return {"time": time_of(lambda: subprocess.run(command, check=True))}


@contextmanager
def _connected(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pid = os.fork()
        if not pid:
            try:
                serve(listener.accept()[0])
            finally:
                os._exit(0)
        with socket.create_connection(listener.getsockname()) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield peer
        os.waitpid(pid, 0)


def _ping(peer: socket.socket) -> None:
    peer.sendall(b"x")
    peer.recv(1)


def _send_back(peer: socket.socket) -> None:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(1):
        peer.sendall(data)


def _send_many(size: int, peer: socket.socket) -> None:
    data = bytearray(size)
    while peer.recv(1):
        peer.sendall(data)
