"""Where `monarch-nb status`, `logs`, `stacks` and `vars` come in, and `debug --list`: a unix socket
in the client's private folder.

Rules of the file: who comes is greeted, says one line (`asked.py`) and gets one line, or for
`logs --follow` any number: `{"answer": ...}` or `{"error": ...}`. Each has a thread, so that a cell
that runs holds up nobody. Nothing that is asked changes anything, here or in a rank; and whatever
is said, however much, and whoever does not listen, the kernel goes on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from monarch_nb.config import VERSION
from monarch_nb.control.inspection import log_lines, reports, variables
from monarch_nb.control.inspection.asked import SCHEMA, Asked
from monarch_nb.control.inspection.reports import Inspected
from monarch_nb.control.keeping.kept_record import own_notebook
from monarch_nb.control.local_server import LocalServer
from monarch_nb.net import wire
from monarch_nb.net.threads import helper_thread

MAX_VISITS: Final = 32
MAX_LINE: Final = 1 << 23  # a million ranks take seven digits each
ASK_S: Final = 5.0
SEND_S: Final = 10.0
FOLLOW_S: Final = 0.1

_REPORTS: Final[Mapping[str, Callable[[Inspected, Asked], dict[str, Any]]]] = {
    "hello": lambda _inspected, _asked: {},
    "status": reports.status,
    "stacks": reports.stacks,
    "stops": reports.stops,
    "logs": log_lines.last,
    "vars": variables.table,
}


class InspectionServer:
    def __init__(self, inspected: Inspected, run_dir: Path, user: int) -> None:
        self._inspected = inspected
        self._is_closed = False
        self._visits: set[socket.socket] = set()
        self._changing = threading.Lock()
        listener = wire.bind_inspection_server(run_dir)
        self._server = LocalServer(listener, user, "monarch-inspection", self._welcome)

    def close(self) -> None:
        """Answer nobody any more."""
        self._is_closed = True
        self._server.close()
        with self._changing:
            for stream in self._visits:
                with contextlib.suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)

    def _welcome(self, stream: socket.socket) -> None:
        with self._changing:
            if self._is_closed or len(self._visits) >= MAX_VISITS:
                stream.close()
                return
            self._visits.add(stream)
        helper_thread(functools.partial(self._serve, stream), "monarch-inspection-visit").start()

    def _serve(self, stream: socket.socket) -> None:
        try:
            stream.settimeout(ASK_S)
            with contextlib.suppress(OSError):  # who does not ask, or does not listen, is left
                self._answer(stream)
        finally:
            with self._changing:
                self._visits.discard(stream)
                stream.close()

    def _answer(self, stream: socket.socket) -> None:
        _say(stream, self._greeting())
        try:
            asked = Asked.from_line(_line(stream))
            if asked.topic == "logs" and asked.follow:
                self._follow(stream, asked)
                return
            stream.settimeout(SEND_S)
            _say(stream, {"answer": _REPORTS[asked.topic](self._inspected, asked)})
        except OSError:
            raise
        except ValueError as error:
            _say(stream, {"error": str(error)})
        except Exception as error:  # noqa: BLE001  who asks is told; the kernel goes on
            _say(stream, {"error": f"the kernel cannot tell: {type(error).__name__}: {error}"})

    def _greeting(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "pid": os.getpid(),
            "notebook": own_notebook() or None,
            "meshes": reports.names(self._inspected),
        }

    def _follow(self, stream: socket.socket, asked: Asked) -> None:
        # what comes while nobody reads (a pager that waits) is left out, and counted
        def goes_on() -> Iterator[None]:
            stream.settimeout(FOLLOW_S)
            while True:
                try:
                    if not stream.recv(1):
                        return
                except TimeoutError:
                    yield None

        for answer in log_lines.follow(self._inspected, asked, goes_on()):
            stream.settimeout(None)
            _say(stream, {"answer": answer})
            stream.settimeout(FOLLOW_S)


def _say(stream: socket.socket, said: Mapping[str, Any]) -> None:
    stream.sendall(json.dumps(said).encode() + b"\n")


def _line(stream: socket.socket) -> bytes:
    said = bytearray()
    while not said.endswith(b"\n"):
        if not (more := stream.recv(1 << 16)) or len(said) > MAX_LINE:
            raise ValueError("this is no question of monarch-nb")
        said += more
    return bytes(said)
