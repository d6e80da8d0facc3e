"""Who waits for a process of another host hears of its end from the client, which hears of all.

An agent tells those of its own host; between hosts there is nobody else who knows that a process,
or its whole host, is gone, or was never there.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_nb.core.wire.frames import HOST_SHIFT, SERVICE_BIT, Message
from monarch_nb.core.wire.messages.agents import Watch
from monarch_nb.process.exit import Exit
from monarch_nb.process.process import Proc


class Watchers:
    """The processes that are waited for from other hosts, and by whom.

    Ends come in the threads of the inbox and of the gateway: whoever waits is noted before it is
    looked whether its process is gone, and is told after that is known.

    `agent_on(host)` is the id of a host's agent; None: there is no such host.
    """

    def __init__(self, proc: Proc, agent_on: Callable[[int], int | None]) -> None:
        self._proc = proc
        self._agent_on = agent_on
        self._waiting: dict[int, set[int]] = {}

    def on_watch(self, watch: Watch, message: Message) -> None:
        """Somebody waits for these."""
        for process in watch.procs:
            self._waiting.setdefault(process, set()).add(message.source)
            if (gone := self._gone(process)) is not None:
                self.exited(gone)
            elif not process & SERVICE_BIT:  # its agent knows if it has never been there
                self._proc.control(self._agent_of(process) or self._proc.agent, Watch([process]))

    def exited(self, gone: Exit) -> None:
        """Tell those who wait for a process that it is gone; with an agent, its host is."""
        for watcher in self._waiting.pop(gone.process, ()):
            self._proc.control(watcher, gone.told())
        if gone.process == self._agent_of(gone.process):
            for process in list(self._waiting):
                if process >> HOST_SHIFT == gone.process >> HOST_SHIFT:
                    self.exited(gone.also_of(process))

    def _agent_of(self, process: int) -> int | None:
        return self._agent_on(process >> HOST_SHIFT)

    def _gone(self, process: int) -> Exit | None:
        if (gone := self._proc.dead.get(process)) is not None:
            return gone
        agent = self._agent_of(process)
        if agent is None:
            return Exit(process, reason="this client knows no such host")
        lost = self._proc.dead.get(agent)
        return None if lost is None else lost.also_of(process)
