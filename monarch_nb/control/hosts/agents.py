"""The agent of this host, started and ended here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from monarch_nb.core.wire.messages.agents import Shutdown
from monarch_nb.errors import LaunchError
from monarch_nb.host.launch import LIGHT, AgentBoot
from monarch_nb.host.local import FoundLauncher, Launcher, LocalLauncher, Patience
from monarch_nb.net.pulse import PulseWatch
from monarch_nb.process import libraries
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.process import Proc

_RANKS_SHARE: Final = 0.6  # of the time to end in: the rest is for killing those that did not


OnEnd = Callable[[str, str, float | None], None]
"""How it ended, its last words, and for how long it was silent, if it was given up for that."""


class FoundAgent(NamedTuple):
    """The process of an agent that goes on, and the environment in which it was started."""

    pid: int
    environment: dict[str, str]

    @staticmethod
    def of(pid: int) -> FoundAgent:
        """Raises `OSError` where it has ended."""
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        pairs = (os.fsdecode(line).partition("=") for line in lines if line)
        return FoundAgent(pid, {name: value for name, _, value in pairs})


class AgentProcess:
    """One life of an agent. A thread of its own, as the launcher asks for, also calls `on_end`.
    `found` is one that another controller has left."""

    def __init__(self, proc: Proc, on_end: OnEnd, found: FoundAgent | None = None) -> None:
        self.ready: Future[bool] = make(Future)
        self.ended: Future[None] = make(Future)  # and everybody has been told
        self.environment = dict(os.environ)  # of the agent, hence of the ranks
        self._proc = proc
        self._on_end = on_end
        self._launcher: Launcher = LocalLauncher(self.environment)
        if found is not None:
            self.environment = found.environment
            self._launcher = FoundLauncher(found.pid)
        self._ending = threading.Event()
        self._over = threading.Event()
        self._patience = Patience(
            self._launcher, proc.config, lambda: self._over.is_set() or self._ending.is_set()
        )
        self._thread = threading.Thread(target=self._run, name="monarch-agent", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._launcher.pid

    def let_go(self) -> None:
        """Leave it to itself: it goes on alone if it keeps ranks, else it ends."""
        self._ending.set()
        self._launcher.let_go()

    def end(self, limit_s: float) -> None:
        """Shut the agent down in an orderly way; kill it after `limit_s`."""
        self._ending.set()
        proc = self._proc
        proc.control(proc.agent, Shutdown(limit_s * _RANKS_SHARE))
        if self._patience.has_lost or not self._over.wait(limit_s + 0.5):
            self._launcher.kill()
        self._over.wait(1)
        self._launcher.close()
        self._thread.join(1)

    def _run(self) -> None:
        proc, links, config = self._proc, self._proc.links, self._proc.config
        boot = AgentBoot(
            run_dir=str(links.run_dir),
            agent=proc.agent,
            controller=proc.id,
            owner_pid=os.getpid(),
            owner_thread=threading.get_native_id(),
            config=asdict(config),
            preload=(*config.preloads(libraries.of_this_program()), *LIGHT),
            loads_when_idle=config.loads_when_idle,
        )
        pulse: PulseWatch | None = None
        how = "could not be started"
        try:
            self._launcher.launch(boot)
            pulse = links.watch_pulse(
                boot.agent, config.pulse_interval_s, config.pulse_timeout_s, self._patience.judge
            )
            how = self._patience.how_it_ended(self._launcher.wait())
        except Exception as error:  # noqa: BLE001  told to everyone who waits for this host
            how = f"could not be started: {error}"
        finally:
            self._over.set()
            words = self._launcher.last_words()
            self.ready._set_exception(LaunchError(f"the agent {how}\n{words}"))
            if not self._ending.is_set():
                self._on_end(how, words, self._patience.silent_s)
                self._launcher.close()
            self.ended._set_result(None)
            if pulse is not None:
                pulse.close()
