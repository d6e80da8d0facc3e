"""What an agent is asked about ranks, without a word to them: their stacks, their place on the
board.

A rank writes its stacks on a signal, also while C code holds its interpreter. Only one that does
not answer is to be asked so (`write_stacks_on_signal`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from monarch_nb.core.hangs.stacks import file_name
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.host import guard
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.ranks import Ranks
from monarch_nb.host.agent.requests import check_procs
from monarch_nb.host.status.board import Sampler

LIMIT_S: Final = 8.0
REAP_S: Final = 0.1  # it was killed
MAX_BYTES: Final = 4 << 20
MISSING: Final = "py-spy is not installed there: pip install py-spy"

Answer = Callable[[messages.NativeStacks | Refused], None]
Wanted = (
    messages.DumpStacks | messages.GetStackDumps | messages.GetBoardRows | messages.GetNativeStacks
)


class Inspector:
    def __init__(self, run_dir: Path, ranks: Ranks, sampler: Sampler, loop: Loop) -> None:
        self.native = Native(loop)
        self._run_dir = run_dir
        self._ranks = ranks
        self._sampler = sampler

    def ask(self, wanted: Wanted, answer: Callable[[object], None]) -> None:
        """Answer a request: now, but for native stacks."""
        procs = check_procs(wanted.procs)
        match wanted:
            case messages.DumpStacks():
                self._dump(procs)
                answer(Done())
            case messages.GetStackDumps():
                answer(messages.StackDumps(self._dumped(procs)))
            case messages.GetBoardRows():
                answer(messages.BoardRows(time.monotonic_ns(), self._sampler.rows(procs)))
            case messages.GetNativeStacks():
                self.native.ask(self._ranks.pids(procs), time.monotonic(), answer)

    def forget(self, proc: int) -> None:
        (self._run_dir / file_name(proc)).unlink(missing_ok=True)

    def _dump(self, procs: Iterable[int]) -> None:
        for proc, pid in self._ranks.pids(procs).items():
            # without the file, it does not know the signal, which would end it; one that is stopped
            # would get it when it goes on, in the middle of whatever its threads do
            if (path := self._run_dir / file_name(proc)).exists() and not _is_stopped(pid):
                os.truncate(path, 0)
                self._ranks.signal(proc, signal.SIGRTMIN)

    def _dumped(self, procs: Iterable[int]) -> dict[str, str]:
        files = {str(proc): self._run_dir / file_name(proc) for proc in procs}
        return {proc: path.read_text() for proc, path in files.items() if path.exists()}


class Native:
    """Native frames of this host's own ranks, from py-spy, where it is installed.

    The agent never waits: a py-spy runs for each rank, is ended after `LIMIT_S`, and what all have
    said is answered together. It reads a process from outside (ptrace); that may be forbidden, and
    it says so itself.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, _Spy] = {}  # by descriptor

    @property
    def pids(self) -> set[int]:
        return {spy.process.pid for spy in self._running.values()}

    def ask(self, pids: Mapping[int, int], now: float, answer: Answer) -> None:
        """Ask for native stacks; answer when all have told. `pids` are those of the ranks."""
        program = _program()
        if program is None:
            answer(Refused(MISSING))
            return
        asked = _Asked(len(pids), answer)
        for proc, pid in pids.items():
            spy = _Spy(program, proc, pid, now + LIMIT_S, asked)
            fd = spy.out
            self._running[fd] = spy
            self._loop.add(fd, functools.partial(self._read, fd))
        asked.finish_if_complete()

    def due(self) -> float | None:
        return min((spy.deadline for spy in self._running.values()), default=None)

    def expire(self, now: float) -> None:
        for fd, spy in list(self._running.items()):
            if spy.deadline <= now:
                self._end(fd, f"py-spy took more than {LIMIT_S:g} s")

    def _read(self, fd: int) -> None:
        spy = self._running[fd]
        if (data := os.read(fd, 1 << 16)) and len(spy.text) < MAX_BYTES:
            spy.text += data
        else:
            self._end(fd, "")

    def _end(self, fd: int, error: str) -> None:
        spy = self._running.pop(fd)
        self._loop.remove(fd)
        guard.kill(spy.process.pid)
        spy.close(error)


class _Asked:
    def __init__(self, missing: int, answer: Answer) -> None:
        self._missing = missing
        self._answer = answer
        self._dumps: dict[str, tuple[str, str]] = {}

    def add(self, proc: int, text: str, error: str) -> None:
        self._missing -= 1
        self._dumps[str(proc)] = text, error
        self.finish_if_complete()

    def finish_if_complete(self) -> None:
        if self._missing == 0:
            self._missing = -1
            self._answer(messages.NativeStacks(self._dumps))


class _Spy:
    def __init__(self, program: str, proc: int, pid: int, deadline: float, asked: _Asked) -> None:
        self.deadline = deadline
        self.text = b""
        self._proc = proc
        self._asked = asked
        self.out, end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.out, False)
        try:
            self.process = subprocess.Popen(
                [program, "dump", "--native", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
            )
        finally:
            os.close(end)

    def close(self, error: str) -> None:
        os.close(self.out)
        text = self.text.decode("utf-8", "replace")
        is_dump = text.lstrip().startswith("[")
        with contextlib.suppress(subprocess.TimeoutExpired):  # then the agent reaps it
            self.process.wait(REAP_S)
        last = text.strip().splitlines()[-1:] or ["py-spy said nothing"]
        self._asked.add(
            self._proc, text if is_dump and not error else "", error or ("" if is_dump else last[0])
        )


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return True


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(beside) if beside.exists() else None)
