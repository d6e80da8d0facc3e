"""The client's end of attached hosts: one gateway, and what is known of each host that was dialled.

A host's number is chosen here; with it come the ids of its gateway, its agent and its ranks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from monarch_nb.config import Config
from monarch_nb.core.wire.frames import HOST_SHIFT, SERVICE_BIT
from monarch_nb.net.gateway import Gateway, pack_hello
from monarch_nb.net.keys import KeyPair
from monarch_nb.process.futures.future import Future, make

ATTACH_S: Final = 10.0


def agent_of(host: int) -> int:
    """The agent's id on an attached host."""
    return host << HOST_SHIFT | SERVICE_BIT | 2


class AttachedHosts:
    """The client's end: a gateway and the hosts it has dialled."""

    def __init__(
        self,
        run_dir: Path,
        own_host: int,
        config: Config,
        controller: int,
        on_lost: Callable[[int, str], None],
    ) -> None:
        self._gateway = Gateway(
            run_dir,
            own_host,
            config.pulse_interval_s,
            config.pulse_timeout_s,
            on_welcome=self._on_welcome,
            on_lost=self._lost,
        )
        self._controller = controller
        self._next = own_host + 1
        self.ready: dict[int, Future[bool]] = {}
        self._addresses: dict[int, str] = {}
        self._on_lost = on_lost
        self._gateway.start()

    def dial(self, address: str, pair: KeyPair) -> int:
        host, self._next = self._next, self._next + 1
        self.ready[host] = make(Future)
        self._addresses[host] = address
        self._gateway.dial(host, address, pair, pair.public, pack_hello(host, self._controller))
        limit = threading.Timer(ATTACH_S, self._too_late, (host,))
        limit.daemon = True
        limit.name = "monarch-attach"
        limit.start()
        self.ready[host].add_done_callback(lambda _: limit.cancel())
        return host

    def _on_welcome(self, host: int, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._fail(host, answer["error"])
        else:
            self.ready[host]._set_result(True)

    def _too_late(self, host: int) -> None:
        self._fail(
            host, f"no answer within {ATTACH_S:g} s; is a worker running there with the same keys?"
        )
        self._gateway.hang_up(host)

    def _lost(self, host: int, why: str) -> None:
        self._fail(host, why)
        self._on_lost(host, why)

    def _fail(self, host: int, why: str) -> None:
        with contextlib.suppress(KeyError):
            self.ready[host]._set_exception(
                RuntimeError(
                    "attach failed: config push failed during attach: "
                    f"{self._addresses[host]}: {why}"
                )
            )

    def close(self) -> None:
        self._gateway.close()
