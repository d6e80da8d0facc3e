"""What the controller itself prints in a cell keeps its place among what ranks print.

A line of a rank may wait a moment for its equals on other ranks, and everything is sent a few times
a second. What the cell prints meanwhile stands behind it in the same queue; when nothing waits,
the kernel's streams do as they always do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from IPython.core.interactiveshell import InteractiveShell


class Queue(Protocol):
    """Holds what ranks have said and the front end has not been sent (a `Session`)."""

    def follow(self, stream: str, text: str) -> bool: ...
    def settle(self) -> None: ...


def keep_order(shell: InteractiveShell, queue: Queue) -> Callable[[], None]:
    """Let the streams of a kernel ask the queue first. Returns what undoes it."""
    streams = [sys.stdout, sys.stderr] if hasattr(shell, "kernel") else []
    ours = [stream for stream in streams if hasattr(stream, "pub_thread")]
    for stream in ours:
        _let_ask(stream, queue)

    def undo() -> None:
        for stream in ours:
            vars(stream).pop("write", None)
            vars(stream).pop("flush", None)

    return undo


def _let_ask(stream: Any, queue: Queue) -> None:
    write, flush, name, process = stream.write, stream.flush, stream.name, os.getpid()

    def is_the_cell() -> bool:  # not a thread that goes on, nor a fork of the kernel
        return threading.current_thread() is threading.main_thread() and os.getpid() == process

    def write_in_order(text: str) -> int | None:
        if is_the_cell() and isinstance(text, str) and queue.follow(name, text):
            return len(text)
        written: int | None = write(text)
        return written

    def flush_in_order() -> None:
        if is_the_cell():
            queue.settle()
        flush()

    stream.write, stream.flush = write_in_order, flush_in_order


def send_what_was_printed() -> None:
    """What the controller has printed so far is sent before whatever is sent next."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "pub_thread"):  # a kernel's own, not redirected
            type(stream).flush(stream)
