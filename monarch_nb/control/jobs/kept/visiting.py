"""What `monarch-nb`, and a kernel that borrows hosts, ask of the process that holds a job."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from monarch_nb.control.jobs.kept.records import Record
from monarch_nb.net import wire


class AskError(Exception):
    """Says in one line why something cannot be done."""


def visit(record: Record) -> socket.socket:
    """Return a connection to who holds a job; what is asked there ends with it. Raises
    `AskError`."""
    try:
        return wire.connect_job_server(Path(record.run_dir))
    except OSError as error:
        raise AskError(
            f"process {record.pid}, which holds {record.name}, does not answer: {error.strerror}"
        ) from None


def answer(
    stream: socket.socket,
    record: Record,
    asked: dict[str, Any],
    show: Callable[[str, str], None] = lambda _stream, _text: None,
) -> dict[str, Any]:
    """Ask, and return what is said in the end; `show` gets what is written meanwhile: "out" or
    "err", and a text. Raises `AskError`."""
    stream.sendall(json.dumps(asked).encode() + b"\n")
    for said in _lines(stream):
        if "error" in said:
            raise AskError(said["error"])
        for name in ("out", "err"):
            if name in said:
                show(name, said[name])
        if not {"out", "err"} & said.keys():
            return said
    raise AskError(f"{record.name} has ended meanwhile")


def _lines(stream: socket.socket) -> Iterator[dict[str, Any]]:
    with stream.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)
