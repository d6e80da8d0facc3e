"""The raw floor: what the machine does without any system. pyzmq, memcpy, fork, pidfd.

It offers the names of the other systems' measures, each with the least that could do that work.
"""

import gc
import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import numpy as np
import zmq

from benchmarks import cells, gpu, hosts, system, transfers, work
from benchmarks.measures import ARRAY_FLOATS, CAST, IN_FLIGHT, SPAWNED, Figures, Measure, Scale
from benchmarks.processes import private_bytes, wait_gone
from benchmarks.timing import median_time, now, time_of, times_of

NOTEBOOK = cells.Notebook(kernel="python3", setup=(), cell="1+1", shows=r"\b2\b")
END = b"end"


# ------------------------------------------------------------------------------------------- pyzmq


def call(scale: Scale) -> Figures:
    """REQ/REP over ipc between two processes."""
    with _servers(1, zmq.REP, _echo) as [address], _socket(zmq.REQ) as socket:
        socket.connect(address)
        seconds = median_time(partial(_ping, socket), scale.calls)
        _end([socket])
    return {"time": seconds}


def flight(scale: Scale) -> Figures:
    with _servers(1, zmq.PAIR, _echo) as [address], _socket(zmq.PAIR) as socket:
        socket.connect(address)
        seconds = median_time(partial(_flood, socket), scale.floods)
        _end([socket])
    return {"rate": IN_FLIGHT / seconds}


def cast(size: int, scale: Scale) -> Figures:
    """One send to each of `size` processes, then one answer from each."""
    with _servers(size, zmq.REP, _echo) as addresses, zmq.Context() as context:
        sockets = [context.socket(zmq.REQ) for _ in addresses]
        for socket, address in zip(sockets, addresses, strict=True):
            socket.connect(address)
        seconds = median_time(partial(_ping_all, sockets), scale.casts)
        _end(sockets)
        for socket in sockets:
            socket.close(linger=1000)
    return {"time": seconds}


def _ping(socket: zmq.Socket[bytes]) -> None:
    socket.send(b"1")
    socket.recv()


def _ping_all(sockets: list[zmq.Socket[bytes]]) -> None:
    for socket in sockets:
        socket.send(b"1")
    for socket in sockets:
        socket.recv()


def _flood(socket: zmq.Socket[bytes]) -> None:
    for _ in range(IN_FLIGHT):
        socket.send(b"1")
    for _ in range(IN_FLIGHT):
        socket.recv()


def _end(sockets: list[zmq.Socket[bytes]]) -> None:
    for socket in sockets:
        socket.send(END)


def _echo(socket: zmq.Socket[bytes]) -> None:
    while (message := socket.recv()) != END:
        socket.send(message)


@contextmanager
def _socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.set_hwm(0)
        yield socket
        socket.close(linger=1000)


@contextmanager
def _servers(
    size: int, kind: int, serve: Callable[[zmq.Socket[bytes]], None]
) -> Iterator[list[str]]:
    """Forked processes that serve one socket each, until they are told to end."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"ipc://{folder}/{rank}" for rank in range(size)]
        pids = [_fork(partial(_serve, address, kind, serve)) for address in addresses]
        try:
            yield addresses
            wait_gone(pids, within_s=5)
        finally:
            _reap(pids)


def _serve(address: str, kind: int, serve: Callable[[zmq.Socket[bytes]], None]) -> None:
    with _socket(kind) as socket:
        socket.bind(address)
        serve(socket)


# ------------------------------------------------------------------------------------------ memcpy


def array_arg(_reads: Callable[[np.ndarray], float], scale: Scale) -> Figures:
    """One copy into memory touched for the first time, then into the same again, then a read."""
    source = np.ones(ARRAY_FLOATS, np.float32)
    pages = mmap.mmap(-1, source.nbytes)
    target = np.frombuffer(pages, np.float32)

    def move() -> None:
        np.copyto(target, source)
        _reads(target)

    cold_s = time_of(move)
    warm_s = median(times_of(move, scale.arrays, within_s=45))
    return {"cold": source.nbytes / cold_s, "warm": source.nbytes / warm_s}


def array_cast(scale: Scale) -> Figures:
    """One copy that all eight would read beside the same copy read by one: the ideal is 1."""
    warm = array_arg(work.ends, scale)["warm"]
    return {"time": ARRAY_FLOATS * 4 / float(warm), "times_one": 1.0}


# -------------------------------------------------------------------------------------------- fork


def spawn(size: int, _scale: Scale) -> Figures:
    """Fork a process with torch loaded `size` times; each child says its id through a pipe."""
    work.load_torch()
    gc.freeze()
    first_s, private = _forks(size)
    again_s, _ = _forks(size)
    return {"first": first_s, "again": again_s, "private": private}


def _forks(size: int) -> tuple[float, float]:
    reader, writer = os.pipe()
    start = now()
    pids = [_fork(partial(_announce, writer)) for _ in range(size)]
    heard = b""
    while len(heard) < size:
        heard += os.read(reader, size)
    elapsed = now() - start
    private = median(private_bytes(pid) for pid in pids)
    _reap(pids)
    return elapsed, private


def _announce(writer: int) -> None:
    os.write(writer, b"x")
    signal.pause()


# ------------------------------------------------------------------------------------------- death


def kill(_scale: Scale) -> Figures:
    """From SIGKILL of a child until its pidfd says so."""
    pid = _fork(signal.pause)
    start = now()
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid], within_s=10)
    elapsed = now() - start
    _reap([pid])
    return {"time": elapsed}


# ----------------------------------------------------------------------------------------- helpers


def _fork(work_of_child: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work_of_child()
    finally:
        os._exit(0)


def _reap(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # ours and not yet waited for: nobody else has its id
    for pid in pids:
        os.waitpid(pid, 0)


def _measures() -> dict[str, Measure]:
    measures: dict[str, Measure] = {
        "call": call,
        "flight": flight,
        "array_arg": partial(array_arg, work.ends),
        "array_sum": partial(array_arg, work.total),
        "array_result": partial(array_arg, work.ends),
        "array_cast": array_cast,
        "rdma": transfers.copies,
        "remote_call": hosts.raw_call,
        "remote_data": hosts.raw_data,
        "remote_up": hosts.raw_up,
        "gpu": gpu.raw_copies,
        "gpu_ranks": gpu.raw_ranks,
        "kill": kill,
    }
    measures |= {f"cast_{n}": partial(cast, n) for n in CAST}
    measures |= {f"spawn_{n}": partial(spawn, n) for n in SPAWNED}
    return measures | cells.measures(NOTEBOOK)


if __name__ == "__main__":
    system.main(_measures())
