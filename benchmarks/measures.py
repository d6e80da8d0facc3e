"""The measures: each is a function of "bring up n ranks", the same for every system.

A measure returns its figures in plain units (seconds, bytes, counts per second); a figure that
could not be had is a text that says why. It checks the answers it gets: a system that is fast
because it did nothing fails its measure.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

import numpy as np

from benchmarks.processes import (
    MARK,
    Flag,
    descendants,
    marked,
    private_bytes,
    wait_gone,
)
from benchmarks.timing import median, median_time, now, time_of, times_of
from benchmarks.work import load_torch

Figures = dict[str, float | str]
Measure = Callable[["Scale"], Figures]

ARRAY_FLOATS = 64 * 1024 * 1024  # 256 MB of float32
BLOB_BYTES = 10_000_000
IN_FLIGHT = 5_000
SPAWNED = (4, 16, 64, 256)
CAST = (4, 16, 64)
FAULT_S = 60.0  # after this, nobody noticed


class Ranks(Protocol):
    """n worker processes that can do what work.py holds."""

    def one(self, method: str) -> Callable[..., Any]:
        """A function that calls `method` on rank 0 and waits for the answer."""

    def each(self, method: str) -> Callable[..., list[Any]]:
        """A function that calls `method` on every rank and waits for all answers."""

    def flood(self, count: int) -> None:
        """Call `echo` on rank 0 `count` times, all in flight at once, and wait for all answers."""

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        """Begin one call; the function that is returned waits for its answer."""

    def down(self) -> None: ...


Up = Callable[[int], Ranks]


@dataclass(frozen=True)
class Scale:
    """How often things are repeated."""

    calls: int = 2_000
    casts: int = 200
    floods: int = 5
    arrays: int = 7

    @classmethod
    def quick(cls) -> "Scale":
        return cls(calls=200, casts=20, floods=1, arrays=2)


def of_ranks(up: Up, module: str) -> dict[str, Measure]:
    """Every measure of a system of ranks. `module` is what `python -m` starts as its owner."""
    measures: dict[str, Measure] = {
        "call": partial(call, up),
        "flight": partial(flight, up),
        "array_arg": partial(array_arg, up, "ends"),
        "array_sum": partial(array_arg, up, "total"),
        "array_result": partial(array_result, up),
        "array_cast": partial(array_cast, up),
        "bytes": partial(plain_bytes, up),
        "kill": partial(fault, up, signal.SIGKILL),
        "stop": partial(fault, up, signal.SIGSTOP),
        "owner": partial(owner, module),
    }
    measures |= {f"cast_{n}": partial(cast, up, n) for n in CAST}
    measures |= {f"spawn_{n}": partial(spawn, up, n, "load_torch") for n in SPAWNED}
    measures |= {f"bare_{n}": partial(spawn, up, n, "pid") for n in SPAWNED}
    return measures


# ------------------------------------------------------------------------------------------ calls


@contextmanager
def ranks_of(up: Up, size: int) -> Iterator[Ranks]:
    """`size` ranks that have answered once, taken down at the end."""
    ranks = up(size)
    try:
        _expect(ranks.each("echo")(7), [7] * size)
        yield ranks
    finally:
        ranks.down()


def call(up: Up, scale: Scale) -> Figures:
    with ranks_of(up, 1) as ranks:
        echo = ranks.one("echo")
        return {"time": median_time(lambda: echo(1), scale.calls)}


def flight(up: Up, scale: Scale) -> Figures:
    with ranks_of(up, 1) as ranks:
        flood_s = median_time(lambda: ranks.flood(IN_FLIGHT), scale.floods, within_s=15)
        return {"rate": IN_FLIGHT / flood_s}


def cast(up: Up, size: int, scale: Scale) -> Figures:
    with ranks_of(up, size) as ranks:
        echo = ranks.each("echo")
        return {"time": median_time(lambda: echo(1), scale.casts)}


def tensor_rate(mesh: Any, inspect: Callable[[Any], Any], count: int, times: int) -> Figures:
    """Small additions on the ranks of a mesh, from the first being issued to the last being run."""
    import torch

    with mesh.activate():
        a, b = torch.ones(4), torch.ones(4)

        def issue() -> None:
            for _ in range(count):
                c = a + b
            inspect(c)

        issue()
        return {"rate": count / median(times_of(issue, times, within_s=60))}


# ----------------------------------------------------------------------------------------- arrays


class ArrayCalls:
    """256 MB sent to `method`; the content differs each time, so that no cache answers."""

    def __init__(self, method: str, call: Callable[..., Any]) -> None:
        self._call = call
        self._array = np.ones(ARRAY_FLOATS, np.float32)
        self._rest = ARRAY_FLOATS - 1 if method == "total" else 1
        self._serial = 1

    def __call__(self) -> None:
        self._serial += 1
        self._array[0] = self._serial
        answer = self._call(self._array)
        for value in answer if isinstance(answer, list) else [answer]:
            if abs(value / (self._serial + self._rest) - 1) > 1e-5:
                raise AssertionError(f"{value} instead of {self._serial + self._rest}")


def array_arg(up: Up, method: str, scale: Scale) -> Figures:
    with ranks_of(up, 1) as ranks:
        return _speeds(ArrayCalls(method, ranks.one(method)), scale)


def array_result(up: Up, scale: Scale) -> Figures:
    with ranks_of(up, 1) as ranks:
        ranks.one("hold")(ARRAY_FLOATS)
        fill = ranks.one("fill")
        serials = count(2)

        def fetch() -> None:
            first = float(next(serials))
            array = fill(ARRAY_FLOATS, first)
            _expect(float(array[0]) + float(array[-1]), first + 1)

        return _speeds(fetch, scale)


def array_cast(up: Up, scale: Scale) -> Figures:
    """To 8 ranks at once, beside one of the same 8."""
    with ranks_of(up, 8) as ranks:
        to_all, to_one = (ArrayCalls("ends", calls("ends")) for calls in (ranks.each, ranks.one))
        all_s = median_time(to_all, scale.arrays, within_s=45)
        one_s = median_time(to_one, scale.arrays, within_s=45)
    return {"time": all_s, "times_one": all_s / one_s}


def plain_bytes(up: Up, scale: Scale) -> Figures:
    """10 MB of `bytes` and of text as argument of two ranks, and of `bytes` as result of one."""
    with ranks_of(up, 2) as ranks:
        length, blob = ranks.each("length"), ranks.one("blob")
        data, text = bytes(BLOB_BYTES), "x" * BLOB_BYTES

        moves = {
            "argument": lambda: _expect(length(data), [BLOB_BYTES] * 2),
            "text": lambda: _expect(length(text), [BLOB_BYTES] * 2),
            "result": lambda: _expect(len(blob(BLOB_BYTES)), BLOB_BYTES),
        }
        return {name: median_time(move, scale.arrays * 3) for name, move in moves.items()}


def _speeds(move: Callable[[], None], scale: Scale) -> Figures:
    size = ARRAY_FLOATS * 4
    cold_s = time_of(move)
    return {
        "cold": size / cold_s,
        "warm": size / median(times_of(move, scale.arrays, within_s=45)),
    }


# ------------------------------------------------------------------------------------------ spawn


def spawn(up: Up, size: int, first_call: str, _scale: Scale) -> Figures:
    """Until the first call on all is answered: as the first thing this process does, and again."""
    first_s, private = _spawn_once(up, size, first_call)
    warm_s, _ = _spawn_once(up, size, first_call)
    return {"first": first_s, "again": warm_s, "private": private}


def _spawn_once(up: Up, size: int, first_call: str) -> tuple[float, float]:
    start = now()
    ranks = up(size)
    answers = ranks.each(first_call)()
    elapsed = now() - start
    pids = set(ranks.each("pid")())
    _expect((len(answers), len(pids)), (size, size))
    private = median(private_bytes(pid) for pid in pids)
    ranks.down()
    return elapsed, private


# ----------------------------------------------------------------------------------------- faults


def fault(up: Up, number: signal.Signals, _scale: Scale) -> Figures:
    """From the signal to a busy rank until the call that waits for it raises."""
    pid, wait = busy_rank(up(2))
    process = os.pidfd_open(pid)
    try:
        return {"time": _until_raised(wait, lambda: signal.pidfd_send_signal(process, number))}
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


def busy_rank(ranks: Ranks) -> tuple[int, Callable[[], Any]]:
    """Make rank 1 of `ranks` busy: its process id, and what waits for the call that it is in."""
    pid = ranks.each("pid")()[1]
    flag = Flag(tempfile.gettempdir())
    wait = ranks.start(1, "spin", flag.path)
    flag.wait(within_s=30)
    flag.close()
    return pid, wait


def _until_raised(wait: Callable[[], Any], strike: Callable[[], None]) -> float | str:
    raised: queue.Queue[tuple[float, Exception | None]] = queue.Queue()

    def watch() -> None:
        try:
            wait()
        except Exception as error:  # whatever the system calls it
            raised.put((now(), error))
        else:
            raised.put((now(), None))

    threading.Thread(target=watch, daemon=True).start()
    start = now()
    strike()
    try:
        end, error = raised.get(timeout=FAULT_S)
    except queue.Empty:
        return f"not within {FAULT_S:g} s"
    return end - start if error else "the call returned as if nothing had happened"


def owner(module: str, _scale: Scale) -> Figures:
    """From SIGKILL of a process that owns 4 ranks, one busy, until nothing of it runs; all of them
    have loaded torch."""
    return killed([sys.executable, "-m", module, "--own"])


def killed(owner: list[str]) -> Figures:
    """The same of a program of that command. It is given a file, and makes it when it is ready."""
    flag = Flag(tempfile.gettempdir())
    root = subprocess.Popen([*owner, flag.path])
    try:
        flag.wait(within_s=60)
    except TimeoutError:
        root.kill()
        raise
    owned = (descendants(root.pid) | _marked_too(root.pid)) - {root.pid}
    start = now()
    root.kill()
    left = wait_gone(owned | {root.pid}, FAULT_S)
    elapsed = now() - start
    root.wait()
    left |= _marked_too(root.pid)
    if left:
        return {"time": f"not within {FAULT_S:g} s, {len(left)} of {len(owned)} left"}
    return {"time": elapsed, "processes": len(owned)}


def own(up: Up, flag: str) -> None:
    """Be such an owner: never returns."""
    load_torch()
    ranks = up(4)
    ranks.each("load_torch")()
    ranks.start(1, "spin", flag)()


def _marked_too(root: int) -> set[int]:
    """Children that left the tree (daemons) still carry the mark of this measure."""
    mark = os.environ.get(MARK)
    return marked(mark) - {os.getpid(), root} if mark else set()


def _expect(answer: Any, wanted: Any) -> None:
    if answer != wanted:
        raise AssertionError(f"answered {answer!r:.80} instead of {wanted!r:.80}")
