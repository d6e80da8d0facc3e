"""Where `monarch-nb debug` comes in: a unix socket in the client's private folder, a conversation
for each visitor.

Rules of the file: JSON, a line each; a visitor must be a process of the same user (the folder has
mode 0700, and the kernel says who it is); while one is here, ranks stop at breakpoints. From a
visitor: `{"line": ...}` or `{"complete": ...}`; to it: `{"say": ...}`, `{"ask": ...}` (null: wait),
`{"words": [...]}`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
from pathlib import Path
from typing import Final

from monarch_nb.control.debug.prompt import Conversation
from monarch_nb.control.debug.sessions import DebugService
from monarch_nb.control.local_server import LocalServer
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.net import wire
from monarch_nb.net.threads import helper_thread

MAX_LINE: Final = 1_000_000
LOOK_S: Final = 0.05
WAITING: Final = "no rank is stopped; this waits for one (Ctrl-D leaves)\n"


class DebugServer:
    def __init__(self, service: DebugService, run_dir: Path, user: int) -> None:
        self._service = service
        self._visits: set[_Visit] = set()
        listener = wire.bind_debug_server(run_dir)
        self._server = LocalServer(listener, user, "monarch-debug-server", self._welcome)

    def close(self) -> None:
        self._server.close()
        for visit in list(self._visits):
            visit.close()

    def _welcome(self, stream: socket.socket) -> None:
        visit = _Visit(self._service, stream, self._visits)
        self._visits.add(visit)
        visit.begin()


class _Visit:
    """One terminal: a thread reads what it sends, another talks."""

    def __init__(self, service: DebugService, stream: socket.socket, others: set[_Visit]) -> None:
        self._service = service
        self._stream = stream
        self._others = others
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._conversation = Conversation(service, self._say, name="a terminal")
        self._is_over = False

    def begin(self) -> None:
        for work in (self._read, self._converse):
            helper_thread(work, "monarch-debug-visit").start()

    def close(self) -> None:
        self._is_over = True
        self._conversation.close()
        self._others.discard(self)
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            with self._stream.makefile("rb") as lines:
                while line := lines.readline(MAX_LINE):
                    self._received(json.loads(line))
        except (OSError, ValueError, RemoteProtocolError):  # it broke, or speaks something else
            pass
        finally:
            self.close()
            self._stream.close()

    def _received(self, said: object) -> None:
        if not isinstance(said, dict):
            raise RemoteProtocolError(f"{type(said).__name__} where an object was expected")
        if isinstance(said.get("line"), str):
            self._lines.put(said["line"])
        elif isinstance(said.get("complete"), str):
            self._send({"words": self._conversation.complete(said["complete"])})

    def _say(self, text: str) -> None:
        self._send({"say": text})

    def _send(self, said: dict[str, object]) -> None:
        try:
            self._stream.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            self.close()

    def _converse(self) -> None:
        stay = self._service.take(lambda _stop: True)
        try:
            while not (self._is_over or self._conversation.is_over):
                self._wait_for_a_stop()
                self._conversation.announce()
                if (line := self._ask()) is not None:
                    self._conversation.do(line)
        finally:
            stay()
            self._conversation.leave()
            self.close()

    def _wait_for_a_stop(self) -> None:
        if self._conversation.stops() or self._is_over:
            return
        if not self._conversation.is_waiting:
            self._send({"say": WAITING, "ask": None})
        while not self._is_over and not self._conversation.stops():
            self._service.wait(lambda: bool(self._conversation.stops()), LOOK_S)
        self._service.gather()

    def _ask(self) -> str | None:
        prompt = self._conversation.prompt
        self._send({"ask": prompt})
        while not self._is_over and self._conversation.prompt == prompt:
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=LOOK_S)
            self._conversation.announce()
        return None
