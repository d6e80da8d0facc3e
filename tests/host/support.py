"""A controller for tests: starts an agent, sends verbs, keeps all that it is told."""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from monarch_nb.config import Config
from monarch_nb.core.wire import frames
from monarch_nb.host.launch import AgentBoot
from monarch_nb.host.local import LocalLauncher
from monarch_nb.host.rundir import new_run_dir
from monarch_nb.net.links import Links
from tests.support import eventually, is_running

CONTROLLER = 1
AGENT = frames.SERVICE_BIT | 2
RANKS = "tests.host.ranks:run"


class Host:
    """One agent and all that it said."""

    def __init__(self, *, main: str = RANKS, preload: tuple[str, ...] = (), **config: Any) -> None:
        self.run_dir = new_run_dir()
        self.told: list[tuple[float, dict[str, Any]]] = []
        self.takes = True  # what ranks write
        self.answers: dict[int, dict[str, Any]] = {}
        self._serials = itertools.count(256)
        self._ports = itertools.count(1000)
        self.links = Links(self.run_dir.path, CONTROLLER, self._deliver)
        self.links.start()
        self.launcher = LocalLauncher()
        self.boot = AgentBoot(
            run_dir=str(self.run_dir.path),
            agent=AGENT,
            controller=CONTROLLER,
            owner_pid=os.getpid(),
            owner_thread=threading.get_native_id(),
            config=dataclasses.asdict(Config(**config)),
            main=main,
            preload=preload,
        )
        self.launcher.launch(self.boot)

    def _deliver(self, message: frames.Message) -> None:
        body = json.loads(bytes(message.payload))
        if message.port:
            self.answers[message.port] = body
        else:
            self.told.append((time.monotonic(), body))
        if self.takes and body.get("verb") == "raw":
            self.send(AGENT, "taken", bytes=body["bytes"])

    @property
    def agent_pid(self) -> int:
        return self.launcher.pid or 0

    # ----------------------------------------------------------------------------------- talking

    def send(self, to: int, verb: str, *buffers: bytes, port: int = 0, **fields: Any) -> None:
        header = frames.HEADER.pack(frames.CONTROL, 0, len(buffers), 0, 0, 0, CONTROLLER, port)
        first = header + json.dumps({"verb": verb, **fields}).encode()
        self.links.outbox(to).send_frames([first, *buffers])

    def ask(
        self, verb: str, *buffers: bytes, within_s: float = 20.0, **fields: Any
    ) -> dict[str, Any]:
        port = next(self._ports)
        self.send(AGENT, verb, *buffers, port=port, **fields)
        return eventually(lambda: self.answers.get(port), within_s, f"an answer to {verb}")

    def find(self, verb: str, proc: int | None = None) -> list[dict[str, Any]]:
        """What was said so far."""
        return [
            body
            for _, body in list(self.told)
            if body["verb"] == verb and (proc is None or body.get("proc") == proc)
        ]

    def hear(self, verb: str, proc: int | None = None, within_s: float = 20.0) -> dict[str, Any]:
        """Wait until it is said, and return it."""
        return eventually(
            lambda: self.find(verb, proc), within_s, f"{verb} of {proc}: {self.told[-5:]}"
        )[0]

    def when(self, verb: str, proc: int | None = None) -> float:
        """When it was said first."""
        self.hear(verb, proc)
        return next(
            at
            for at, body in list(self.told)
            if body["verb"] == verb and proc in (None, body.get("proc"))
        )

    # ------------------------------------------------------------------------------------- ranks

    def new_ids(self, count: int) -> list[int]:
        return list(itertools.islice(self._serials, count))

    def spawn(self, count: int, *buffers: bytes, **fields: Any) -> list[int]:
        """Spawn, and wait until all have a process."""
        procs = self.new_ids(count)
        fields = {
            "path": sys.path,
            "cwd": os.getcwd(),
            "owner": CONTROLLER,
            "name": "mesh",
            **fields,
        }
        answer = self.ask("spawn", *buffers, procs=procs, **fields)
        assert answer == {"ok": True}, answer
        self.wait_spawned(procs)
        return procs

    def wait_spawned(self, procs: list[int], within_s: float = 30.0) -> None:
        eventually(lambda: set(procs) <= set(self.pids()), within_s, f"all of {procs} spawned")

    def pids(self) -> dict[int, int]:
        """All ranks that ever had a process."""
        pairs = [zip(body["procs"], body["pids"], strict=True) for body in self.find("spawned")]
        return dict(itertools.chain(*pairs))

    def up(self, procs: list[int]) -> None:
        for proc in procs:
            self.hear("up", proc)

    def facts(self, proc: int) -> dict[str, Any]:
        self.send(proc, "facts")
        return self.hear("facts", proc)

    # ---------------------------------------------------------------------------------------- end

    def close(self) -> None:
        self.launcher.close()
        self.links.close()
        self.run_dir.remove()


@contextlib.contextmanager
def host(*, ready: bool = True, **options: Any) -> Iterator[Host]:
    """A ready agent. Nothing of it is left afterwards."""
    made = Host(**options)
    try:
        if ready:
            made.hear("ready", within_s=60)
        yield made
    finally:
        pids = list(made.pids().values())
        made.close()
        eventually(lambda: not any(map(is_running, pids)), 5.0, "ranks gone after the agent's end")


def wait(seconds: float) -> None:
    """Let time pass in which something must not happen."""
    threading.Event().wait(seconds)
