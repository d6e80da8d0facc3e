"""Addresses of workers as programs write them.

`tcp://host:port` or `ipc://path`, or `DIAL@BIND`: others reach the worker at the one, and it
listens at the other. Monarch's have the id of a process in front, as in `service-0123...@tcp://...`;
workers have no ids of their own here, so that is left out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ADDRESS: Final = re.compile(
    r"(?:[^@/]*@)?(?P<dial>\w+://[^@]*)(?:@(?P<bind>\w+://[^@]*))?", re.DOTALL
)


class WorkerAddress(NamedTuple):
    """Where others reach a worker, and where it listens if that was said apart."""

    dial: str
    bind: str | None

    @staticmethod
    def from_text(text: str) -> WorkerAddress:
        """Read an address. Raises `ValueError` for what is none."""
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError(
                f"{text!r} is no address of a worker: write tcp://host:port, ipc://path, or "
                "tcp://host:port@tcp://interface:port"
            )
        return WorkerAddress(found["dial"], found["bind"])
