"""How a process ended, and how that is said: to programs in Monarch's words, to people plainly."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import ClassVar

from monarch_nb.core.errors.records import is_internal
from monarch_nb.core.hangs.stacks import Crash, Frame, crash
from monarch_nb.core.wire.messages.agents import Exited
from monarch_nb.errors import RankExited, RankUnreachable, SupervisionError


@dataclass(frozen=True)
class Exit:
    """How a process ended, as its agent saw it."""

    # where an answer is awaited it may come instead: it is no message's kind
    kind: ClassVar[int] = 0
    process: int
    code: int | None = None
    signal: int | None = None
    reason: str | None = None
    tail: str = ""
    oom: bool = False
    unreachable_s: float | None = None
    asked: bool = False  # somebody stopped it, in an orderly way
    for_good: bool = False  # its host was never there: there is nothing to bring back

    @staticmethod
    def of(told: Exited) -> Exit:
        return Exit(
            told.proc, told.code, told.signal, told.reason, told.tail, told.oom,
            told.unreachable_s, told.asked, told.for_good,
        )  # fmt: skip

    def told(self) -> Exited:
        """Return what tells another process of it."""
        return Exited(
            self.process, None, self.code, self.signal, self.reason, self.tail, self.oom,
            self.unreachable_s, self.asked, self.for_good,
        )  # fmt: skip

    def also_of(self, process: int) -> Exit:
        """Say the same of a process that was lost with this one."""
        return replace(self, process=process)

    def crash(self) -> Crash | None:
        return crash(self.tail)

    def crashed_at(self) -> list[Frame]:
        """Return the user's calls, outermost first, that Python was in when it crashed."""
        crashed = self.crash()
        frames = crashed.frames if crashed else []
        return [frame for frame in reversed(frames) if not is_internal(frame.file)]

    def printed(self, count: int = 20) -> str:
        """Return the last lines that it printed, as an indented paragraph; empty if none."""
        crashed = self.crash()
        said = (self.tail if crashed is None else crashed.before).rstrip()
        lines = "".join(f"\n  {line}" for line in said.splitlines()[-count:])
        return f"\nThe last lines it printed:{lines}" if lines else ""

    def error(self, text: str = "", *, ranks: tuple[int, ...] = ()) -> SupervisionError:
        """Make the error for who needs the process; without a text it says what `describe` does."""
        if self.unreachable_s is not None:
            lost = RankUnreachable(text or self.describe(), ranks=ranks)
            lost.last_heard_s = self.unreachable_s
            return lost
        gone = RankExited(text or self.describe(), ranks=ranks)
        gone.exitcode, gone.signal, gone.log_tail = self.code, self.signal, self.tail
        return gone

    def plainly(self) -> str:
        """Say it to people who run cells: "exited with code 3"."""
        if self.oom:
            return "was killed because the memory ran out"
        why = f": {self.reason}" if self.reason else ""
        if self.signal is not None:
            return f"was killed by signal {self.signal} ({_signal_name(self.signal)}){why}"
        if self.unreachable_s:  # 0: its host has told how it was lost
            return f"has not been heard for {self.unreachable_s:.1f} s{why}"
        if self.code is not None:
            return f"exited with code {self.code}{why}"
        return f"is gone: {self.reason or 'unknown reason'}"

    def describe(self) -> str:
        """Say "the process this actor was running on exited with non-zero code 3"."""
        return f"the process this actor was running on {self._how()}"

    def _how(self) -> str:
        if self.asked:
            return "has been stopped"
        if self.oom:
            return "was killed: out of memory (Killed(sig=9))"
        why = f": {self.reason}" if self.reason else ""
        if self.signal is not None:
            return f"failed: Killed(sig={self.signal}, {_signal_name(self.signal)}){why}"
        if self.unreachable_s:
            return f"was not heard for {self.unreachable_s:.1f} s{why}"
        if self.code is not None:
            return f"exited with {'non-zero code' if self.code else 'code'} {self.code}{why}"
        return f"is gone: {self.reason or 'unknown reason'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
