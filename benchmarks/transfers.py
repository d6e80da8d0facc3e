"""The data plane: one-sided reads and writes, calls while data moves, memory that a large argument
takes. Ours only; `copies` is the floor of the first."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measures import ARRAY_FLOATS, Figures, Scale
from benchmarks.timing import median, median_time, now, times_of
from monarch_nb import Actor, RDMABuffer, endpoint, this_host

MB = 1 << 20
SIZES = {"4k": 4096, "1m": MB, "256m": ARRAY_FLOATS * 4}
GIGABYTE = 1 << 30
PEAK = "VmHWM"


class Holder(Actor):
    """Owns memory that others read, and looks at its own."""

    @endpoint
    def offer(self, size: int) -> RDMABuffer:
        self.bytes = np.ones(size, np.uint8)
        return RDMABuffer(memoryview(self.bytes))

    @endpoint
    def last(self) -> int:
        return int(self.bytes[-1])

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def sum_with_peak(self, array: Any) -> tuple[float, int]:
        return float(array.sum()), memory(PEAK)

    @endpoint
    def begin(self) -> int:
        return begin_peak()


def rdma(scale: Scale) -> Figures:
    """`read_into` and `write_from` of sizes, into memory that was used before."""
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    holder = procs.spawn("holder", Holder)
    figures: Figures = {}
    for name, size in SIZES.items():
        buffer = holder.offer.call_one(size).get()
        room = np.zeros(size, np.uint8)
        for verb, move in (("read", buffer.read_into), ("write", buffer.write_from)):
            seconds = median_time(_waited(move, memoryview(room)), _rounds(size, scale))
            figures[f"{verb}_{name}"] = size / seconds if size > MB else seconds
        if room[-1] != 1 or holder.last.call_one().get() != 1:
            raise AssertionError("the bytes that came are not those that were there")
        buffer.drop().get()
    procs.stop().get()
    return figures


def copies(scale: Scale) -> Figures:
    """memcpy of the same sizes, in one process."""
    figures: Figures = {}
    for name, size in SIZES.items():
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        seconds = median_time(lambda: np.copyto(target, source), _rounds(size, scale))  # noqa: B023
        for verb in ("read", "write"):
            figures[f"{verb}_{name}"] = size / seconds if size > MB else seconds
    return figures


def _rounds(size: int, scale: Scale) -> int:
    return scale.arrays * 3 if size > MB else scale.calls


def _waited(move: Callable[[Any], Any], room: memoryview) -> Callable[[], None]:
    return lambda: move(room).get()


def beside(scale: Scale) -> Figures:
    """Calls on a rank, idle and while 1 GB moves to another one: by an argument, by a read."""
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    holders = procs.spawn("holders", Holder)
    far, near = holders.slice(gpus=0), holders.slice(gpus=1)
    array = np.ones(GIGABYTE, np.uint8)
    buffer = far.offer.call_one(GIGABYTE).get()
    echo = _called(near.echo)
    figures: Figures = {"idle": median_time(echo, scale.calls)}
    moves = {
        "argument": lambda: far.sum_with_peak.call_one(array[:GIGABYTE]).get(),
        "read": lambda: buffer.read_into(memoryview(array)).get(),
    }
    for name, move in moves.items():
        move()
        seconds = median(_while(move, echo))
        figures[name] = seconds
        figures[f"{name}_times"] = seconds / float(figures["idle"])
    procs.stop().get()
    return figures


def _called(echo: Any) -> Callable[[], None]:
    return lambda: echo.call_one(1).get()


def _while(move: Callable[[], Any], work: Callable[[], Any]) -> list[float]:
    """Times of `work` as long as `move` runs, again and again, for two seconds."""
    over = threading.Event()

    def keep_moving() -> None:
        until = now() + 2
        while now() < until:
            move()
        over.set()

    mover = threading.Thread(target=keep_moving)
    mover.start()
    times: list[float] = []
    while not over.is_set():
        times.extend(times_of(work, 50, within_s=1))
    mover.join()
    return times


def peak(_scale: Scale) -> Figures:
    """The peak of both processes while 1 GB is an argument, in terms of the argument."""
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    holder = procs.spawn("holder", Holder)
    holder.echo.call_one(1).get()
    far = holder.begin.call_one().get()
    near = begin_peak()
    array = np.ones(GIGABYTE, np.uint8)
    total, far_peak = holder.sum_with_peak.call_one(array).get()
    near_peak = memory(PEAK)
    procs.stop().get()
    if total != GIGABYTE:
        raise AssertionError(f"{total} instead of {GIGABYTE}")
    return {"sender": (near_peak - near) / GIGABYTE, "receiver": (far_peak - far) / GIGABYTE}


def begin_peak() -> int:
    """Forget the peak so far; what this process has now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> int:
    """A figure of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) * 1024
