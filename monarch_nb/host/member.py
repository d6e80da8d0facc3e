"""This host as a part of a mesh: its run dir, its gateway, and its agent while a controller has it.

It is offered at an address (`control/hosts/attach.py`), or joins the job that it was started for
(`join.py`). Rule: what a controller has spawned here goes when the controller goes, unless that
keeps it: then the host has no controller until another one takes it, or its agent ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from monarch_nb.config import Config
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.host import guard
from monarch_nb.host.interfaces import interface_for_others, reachable_at
from monarch_nb.host.launch import LIBRARIES, LIGHT, AgentBoot
from monarch_nb.host.lending import Lending
from monarch_nb.host.local import LocalLauncher, Patience
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net import wire
from monarch_nb.net.hosts import dialing
from monarch_nb.net.hosts.gateway import Gateway
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import LEFT, Timing
from monarch_nb.net.loop import LoopThread
from monarch_nb.net.pulse import Pulse, PulseWatch

_REACH_S: Final = 10.0
_SHUT_S: Final = 1.0
_LOOK_S: Final = 1.0


class HostMember:
    """One host. `stays`: when its controller has gone it is there for another one."""

    def __init__(self, *, stays: bool) -> None:
        self._run_dir = new_run_dir()
        self._file_limit, _ = guard.raise_file_limit()  # connections of strangers take some
        self._config = Config.from_environ()
        self._stays = stays
        self._why_left: str | None = None
        self._agent: LocalLauncher | None = None
        self._is_of: tuple[int, int] | None = None  # the controller, and our number there
        self._changed = threading.Event()
        self._has_ended = False
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread = LoopThread("monarch-gateway")
        self._gateway = Gateway(
            self._run_dir.path,
            0,
            self._thread.loop,
            Timing.of(self._config),
            on_lost=lambda _host, why, _silent_s: self._left(why),
            lender=Lending(self._config.shared_bytes, self._config.shared_threshold_bytes),
        )

    @property
    def run_dir(self) -> Path:
        return self._run_dir.path

    @property
    def has_controller(self) -> bool:
        return self._gateway.is_served

    def listen(self, address: str | None, *, anywhere: bool = False) -> list[str]:
        """Let other hosts connect here; return the addresses at which they may.

        Raises as `wire.listen_for_hosts`.
        """
        listener = wire.listen_for_hosts(address, anywhere=anywhere)
        self._thread.loop.call(lambda: self._gateway.listen(listener))
        return reachable_at(wire.listens_at(listener))

    def serve(self, host: int, controller: int, secret: Secret, interface: str | None) -> int:
        """Be host number `host` of a controller, and wait for it to connect; return the id of the
        agent here. Other hosts reach this one by `interface`.

        Raises `LaunchError` where the agent cannot be started.
        """
        agent = self._start_agent(host, controller, interface)
        self._begin(host, controller, secret, ())
        return agent

    def join(self, host: int, controller: int, secret: Secret, dial: Sequence[str]) -> None:
        """Be host number `host` of a controller, which is dialled: where it has gone since it took
        this host, `wait` says so. Raises `LaunchError` where the agent cannot be started."""
        first = dialing.dial(dial, secret, 0, _REACH_S)
        if isinstance(first, dialing.Failure):
            self._left(f"none of {', '.join(dial)} can be reached any more")
            return
        used = wire.listens_at(first.socket)
        self._start_agent(host, controller, interface_for_others(used, dial))
        self._begin(host, controller, secret, dial, first)

    def leave(self, controller: int, host: int) -> None:
        """Leave a controller that says it has given this host up, which had this number there; what
        it has spawned ends. Nothing happens where this is no such host."""
        if self.has_controller and self._is_of == (controller, host):
            self._leave("its client has given it up")

    def _begin(
        self,
        host: int,
        controller: int,
        secret: Secret,
        dial: Sequence[str],
        first: dialing.Connection | None = None,
    ) -> None:
        self._is_of = controller, host

        def begin() -> None:
            self._gateway.rename(host)
            self._gateway.serve(controller >> HOST_SHIFT, secret, dial, first)

        self._thread.loop.call(begin)

    def wait(self) -> str | None:
        """Wait until a controller has shut this host down, it was closed, it does not stay, or its
        controller has gone and what that has left goes on (`is_left`); then return why the
        controller has gone."""
        while not self._changed.wait(_LOOK_S):
            pass  # a signal that came just before the wait is noticed now
        self._changed.clear()
        return self._why_left

    @property
    def is_left(self) -> bool:
        """Tell whether what a controller has left here goes on, until `join_again`."""
        return self._gateway.is_left and not self._has_ended

    @property
    def number(self) -> int:
        """The number that a controller has given this host."""
        return self._gateway.host

    def join_again(self, controller: int, secret: Secret, dial: Sequence[str]) -> None:
        """Be the same host of another controller, which is dialled, with all that goes on here."""
        self._begin(self.number, controller, secret, dial)

    def _end(self) -> None:
        self._has_ended = True
        self._changed.set()

    def close(self) -> None:
        """End everything on this host. Harmless when repeated."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._drop_agent()
            self._gateway.close()
            self._thread.close()
            self._run_dir.remove()
            self._end()

    def _start_agent(self, host: int, controller: int, interface: str | None) -> int:
        agent = wire.agent_id(host)
        launcher = self._agent = LocalLauncher()
        boot = AgentBoot(
            str(self._run_dir.path),
            agent,
            controller,
            os.getpid(),
            asdict(self._config),
            file_limit=self._file_limit,
            interface=interface,
            preload=(*self._config.preloads(LIBRARIES), *LIGHT),
            loads_when_idle=self._config.loads_when_idle,
        )
        launcher.launch(boot)
        threading.Thread(
            target=self._watch, args=(launcher, agent), name="monarch-agent", daemon=True
        ).start()
        return agent

    def _watch(self, launcher: LocalLauncher, agent: int) -> None:
        patience = Patience(launcher, self._config, lambda: launcher is not self._agent)
        with self._watched(agent, patience):
            code = launcher.wait()
        if launcher is not self._agent:
            return  # it was ended here
        if code == 0 or self.is_left:
            self._end()  # a controller has shut the host down, or the time is over
        else:
            how = patience.how_it_ended(code)
            self._leave(f"its agent {how}\n{launcher.last_words()}".rstrip())

    @contextlib.contextmanager
    def _watched(self, agent: int, patience: Patience) -> Iterator[None]:
        context, config = wire.new_context(), self._config
        timing = config.pulse_interval_s, config.pulse_timeout_s
        make = functools.partial(Pulse, context, self.run_dir, agent, *timing)
        watch = PulseWatch(make, patience.judge)
        yield
        watch.close()
        wire.end_context(context)

    def _leave(self, why: str) -> None:
        self._thread.loop.call(lambda: self._gateway.leave_controller(why))

    def _left(self, why: str) -> None:
        if self._gateway.is_left:
            self._why_left = why
            self._changed.set()
            return
        launcher, self._agent = self._agent, None
        if launcher is not None:
            if why == LEFT and launcher.ends_within(_SHUT_S):  # this host was shut down before
                self._end()
            else:
                launcher.kill()
        if not self._stays:
            self._why_left = why
            self._end()

    def _drop_agent(self) -> None:
        launcher, self._agent = self._agent, None
        if launcher is not None:
            launcher.kill()
