"""What the agent holds of each rank: a handle on its process, pipes, pulse, slot on the board.

Everything a rank costs the agent is taken in `add` and given back in `remove`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from monarch_nb.config import Config
from monarch_nb.host.agent.loop import Loop
from monarch_nb.host.agent.mailbox import Mailbox
from monarch_nb.host.output import FlowControl, Output
from monarch_nb.host.status.board import Board, Sampler
from monarch_nb.net.pulse import Pulse

FDS_PER_RANK: Final = 12  # 3 pipes and handles, 4 of the pulse, 2 of an outbox, what is in flight


@dataclass
class Rank:
    pid: int
    handle: int
    output: Output
    pulse: Pulse


class Ranks:
    """All of them. `pulsed(proc, up)` is called when a pulse changes."""

    def __init__(
        self,
        loop: Loop,
        mailbox: Mailbox,
        config: Config,
        sampler: Sampler,
        pulsed: Callable[[int, bool], None],
    ) -> None:
        self.board = Board()
        self.flow = FlowControl(loop)
        self._sampler = sampler
        self._loop = loop
        self._mailbox = mailbox
        self._config = config
        self._pulsed = pulsed
        self._ranks: dict[int, Rank] = {}
        self._slots: dict[int, int] = {}

    def reserve(self, proc: int) -> tuple[str, int]:
        """Reserve a place on the board for a rank that is asked for."""
        self._slots[proc] = index = self.board.take()
        return self.board.path, index

    def add(self, proc: int, pid: int, fds: list[int]) -> None:
        """Take a rank that was forked; `fds` are the read ends of its streams and its pidfd."""
        out, err, handle = fds
        config = self._config
        pulse = self._mailbox.pulse(proc, config.pulse_interval_s, config.pulse_timeout_s)
        rank = self._ranks[proc] = Rank(pid, handle, Output(proc, (out, err)), pulse)
        self.flow.add(rank.output, self.board.reads(self._slots[proc]))
        self._loop.add(pulse.fileno(), functools.partial(self._on_pulse, proc, pulse))
        self._on_pulse(proc, pulse)
        self._sampler.add(proc, pid, self.board.slot(self._slots[proc]))

    def remove(self, proc: int) -> Output | None:
        """Give back what a rank that is over has cost; return its output, read to the end."""
        if (index := self._slots.pop(proc, None)) is not None:
            self.board.give_back(index)
        if (rank := self._ranks.pop(proc, None)) is None:
            return None
        self._sampler.remove(proc)
        self._loop.remove(rank.pulse.fileno())
        rank.pulse.close()
        os.close(rank.handle)
        self.flow.remove(rank.output)
        return rank.output

    def signal(self, proc: int, number: int) -> None:
        """Signal a rank, if it still has a process; a pidfd never hits a stranger."""
        if (rank := self._ranks.get(proc)) is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank.handle, number)

    def proc_of(self, pid: int) -> int | None:
        return next((proc for proc, rank in self._ranks.items() if rank.pid == pid), None)

    def pids(self, procs: Iterable[int]) -> dict[int, int]:
        """Return the processes of those of these ranks that live."""
        return {proc: self._ranks[proc].pid for proc in procs if proc in self._ranks}

    def tail(self, proc: int) -> str:
        rank = self._ranks.get(proc)
        return "" if rank is None else rank.output.tail()

    def when_forwarded(self, procs: Iterable[int], action: Callable[[], None]) -> None:
        """Call `action` when all has gone on that these ranks have written by now."""
        outputs = [rank.output for proc in procs if (rank := self._ranks.get(proc)) is not None]
        self.flow.when_forwarded(outputs, action)

    def close(self) -> None:
        for proc in list(self._slots):
            self.remove(proc)
        self.board.close()

    def _on_pulse(self, proc: int, pulse: Pulse) -> None:
        for up in pulse.read():
            self._pulsed(proc, up)
