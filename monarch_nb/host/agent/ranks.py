"""What the agent holds of each rank: a handle on its process, pipes, pulse, slot on the board.

Everything a rank costs the agent is taken in `admit` and given back in `dismiss`.
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
from monarch_nb.host.agent.mailbox import Mail
from monarch_nb.host.output.flow_control import Outflow
from monarch_nb.host.output.pipes import Output
from monarch_nb.host.status.board import Board, Sampler
from monarch_nb.net.pulse import Pulse

FDS_PER_RANK: Final = (
    12  # 3 pipes and handles, 4 of the pulse, 2 of an outbox, and what is in flight
)


@dataclass
class Ward:
    """One rank with a process."""

    pid: int
    handle: int
    output: Output
    pulse: Pulse


class Wards:
    """All of them. `pulsed(proc, up)` is called when a pulse changes."""

    def __init__(
        self,
        loop: Loop,
        mail: Mail,
        config: Config,
        sampler: Sampler,
        pulsed: Callable[[int, bool], None],
    ) -> None:
        self.board = Board()
        self.outflow = Outflow(loop)
        self._sampler = sampler
        self._loop = loop
        self._mail = mail
        self._config = config
        self._pulsed = pulsed
        self._wards: dict[int, Ward] = {}
        self._slots: dict[int, int] = {}

    def reserve(self, proc: int) -> tuple[str, int]:
        """A place on the board for a rank that is asked for."""
        self._slots[proc] = index = self.board.take()
        return self.board.path, index

    def admit(self, proc: int, pid: int, fds: list[int]) -> None:
        """The rank was forked; `fds` are the read ends of its streams and its pidfd."""
        out, err, handle = fds
        config = self._config
        pulse = self._mail.pulse(proc, config.pulse_interval_s, config.pulse_timeout_s)
        ward = self._wards[proc] = Ward(pid, handle, Output(proc, (out, err)), pulse)
        self.outflow.add(ward.output, self.board.reads(self._slots[proc]))
        self._loop.add(pulse.fileno(), functools.partial(self._on_pulse, proc, pulse))
        self._on_pulse(proc, pulse)
        self._sampler.add(proc, pid, self.board.slot(self._slots[proc]))

    def dismiss(self, proc: int) -> Output | None:
        """The rank has ended, or was never forked. Its output has then been read to the end."""
        if (index := self._slots.pop(proc, None)) is not None:
            self.board.give_back(index)
        if (ward := self._wards.pop(proc, None)) is None:
            return None
        self._sampler.remove(proc)
        self._loop.remove(ward.pulse.fileno())
        ward.pulse.close()
        os.close(ward.handle)
        self.outflow.remove(ward.output)
        return ward.output

    def signal(self, proc: int, number: int) -> None:
        """Signal a rank, if it still has a process; a pidfd never hits a stranger."""
        if (ward := self._wards.get(proc)) is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(ward.handle, number)

    def proc_of(self, pid: int) -> int | None:
        """The rank that has this process."""
        return next((proc for proc, ward in self._wards.items() if ward.pid == pid), None)

    def pids(self, procs: Iterable[int]) -> dict[int, int]:
        """The processes of those of these ranks that live."""
        return {proc: self._wards[proc].pid for proc in procs if proc in self._wards}

    def tail(self, proc: int) -> str:
        """The last lines of a living rank."""
        ward = self._wards.get(proc)
        return "" if ward is None else ward.output.tail()

    def when_passed(self, procs: Iterable[int], action: Callable[[], None]) -> None:
        """Call `action` when all has gone on that these ranks have written by now."""
        outputs = [ward.output for proc in procs if (ward := self._wards.get(proc)) is not None]
        self.outflow.when_passed(outputs, action)

    def close(self) -> None:
        """Give everything back."""
        for proc in list(self._slots):
            self.dismiss(proc)
        self.board.close()

    def _on_pulse(self, proc: int, pulse: Pulse) -> None:
        for up in pulse.read():
            self._pulsed(proc, up)
