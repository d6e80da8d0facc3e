"""Where the output of a cell goes: to the front end under the cell that caused it, or to the
terminal.

Rule of the file: a sink may be used from any thread and at any time, also after its cell has ended.
In a kernel it sends messages with the cell's own parent header; `print` in a thread would reach
whatever cell runs. What the cell itself prints keeps its place among what ranks print: a line of a
rank may wait for its equals, so it goes into the same queue behind it, unless nothing waits.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import publish_display_data

from monarch_nb.notebook.output.mime import Content
from monarch_nb.notebook.shells import Header, Kernel, has_reader, kernel_of, request_of

_BEFORE_DISPLAYS = ("_flush_streams", "finish_displayhook", "__call__")
"""Functions of ipykernel that flush because they show something; others do with every request."""


class Queue(Protocol):
    """Holds what ranks have said and the front end has not been sent (a `Session`)."""

    def follow(self, stream: str, text: str) -> bool: ...
    def settle(self) -> None: ...
    def make_room(self) -> None: ...


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
        if os.getpid() == process:
            queue.make_room()
        if is_the_cell() and isinstance(text, str) and queue.follow(name, text):
            return len(text)
        written: int | None = write(text)
        return written

    def flush_in_order() -> None:
        if os.getpid() == process and sys._getframe(1).f_code.co_name in _BEFORE_DISPLAYS:
            queue.make_room()
        if is_the_cell():
            queue.settle()
        flush()

    stream.write, stream.flush = write_in_order, flush_in_order


def send_what_was_printed() -> None:
    """Send what the controller has printed so far."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "pub_thread"):  # a kernel's own, not redirected
            type(stream).flush(stream)


class CommMessage(NamedTuple):
    """A message of a comm; without `parent` it belongs to the cell."""

    kind: str
    content: Content
    metadata: Content = MappingProxyType({})
    buffers: Sequence[bytes] = ()
    parent: Header | None = None


class Sink(Protocol):
    """Takes text and display messages. `redraws`: a display can be changed after it was shown."""

    redraws: bool

    @property
    def is_watched(self) -> bool:
        """Whether somebody may look at it while it comes."""

    def stream(self, name: str, text: str) -> None:
        """Write to the cell's stdout or stderr."""

    def display(self, kind: str, content: Content) -> None:
        """Send a `display_data`, `update_display_data` or `clear_output` message."""

    def comm(self, message: CommMessage) -> None:
        """Send a comm message, as the answer to its parent or to the cell."""

    def end(self) -> None:
        """Note that the cell has ended; more may come all the same."""


class Headless:
    """What is late where a program runs the notebook.

    Such a program (it offers no stdin) hears the cell that runs, and drops what comes for an
    earlier one or between two: there, late output goes to the cell that runs, or to the next.
    """

    def __init__(self) -> None:
        self._header: Header | None = None
        self._late: list[Callable[[Header], None]] = []
        self._lock = threading.Lock()

    def begin(self, header: Header) -> None:
        with self._lock:
            self._header = header
            for send in self._late:
                send(header)
            self._late.clear()

    def end(self) -> None:
        with self._lock:
            self._header = None

    def send(self, send: Callable[[Header], None]) -> None:
        """Send now, or with the next cell."""
        with self._lock:
            if self._header is None:
                self._late.append(send)
            else:
                send(self._header)


class KernelSink:
    """A cell of an ipykernel."""

    redraws = True

    def __init__(
        self, shell: InteractiveShell, header: Header, headless: Headless | None = None
    ) -> None:
        self._kernel: Kernel = kernel_of(shell)
        self._shell = shell
        self._header = header
        self._headless = headless
        if headless is not None:
            headless.begin(header)

    @property
    def is_watched(self) -> bool:
        """Not when a program runs the notebook."""
        return self._headless is None

    def end(self) -> None:
        if self._headless is not None:
            self._headless.end()

    def stream(self, name: str, text: str) -> None:
        """Send a `stream` message, or write where the running cell has redirected the stream."""
        current = getattr(sys, name)
        if self._is_redirected(current):
            current.write(text)
        else:
            self._send("stream", {"name": name, "text": text})

    def display(self, kind: str, content: Content) -> None:
        """Send a display message, or hand it to `%%capture`."""
        publisher = self._shell.display_pub
        if kind != "clear_output" and self._is_redirected(publisher):
            publisher.publish(
                data=dict(content["data"]),
                metadata=dict(content["metadata"]),
                transient=content.get("transient"),
                update=kind == "update_display_data",
            )
        else:
            self._send(kind, content)

    def comm(self, message: CommMessage) -> None:
        """Send a comm message; it has no place among the outputs, so nothing is flushed for it."""

        def publish(header: Header) -> None:
            kernel = self._kernel
            kernel.session.send(
                kernel.iopub_socket,
                message.kind,
                dict(message.content),
                metadata=dict(message.metadata),
                parent=header,
                ident=f"comm-{message.content['comm_id']}".encode(),
                buffers=list(message.buffers),
            )

        if message.parent is None and self._headless is not None:
            self._headless.send(publish)
        else:
            publish(message.parent or self._header)

    def _is_redirected(self, target: object) -> bool:
        # By `%%capture` or `redirect_stdout` in this cell; ipykernel's own know their parent
        if hasattr(target, "set_parent"):
            return False
        header = request_of(self._shell).get("header", {})
        return bool(header.get("msg_id") == self._header.get("msg_id"))

    def _send(self, kind: str, content: Content) -> None:
        if self._headless is None:
            self._publish(kind, content, self._header)
        else:
            self._headless.send(partial(self._publish, kind, content))

    def _publish(self, kind: str, content: Content, header: Header) -> None:
        kernel = self._kernel
        send_what_was_printed()
        kernel.session.send(
            kernel.iopub_socket, kind, content, parent=header, ident=kernel._topic(kind)
        )


class TerminalSink:
    """Terminal IPython: there is one place for everything."""

    is_watched = True
    redraws = False

    def stream(self, name: str, text: str) -> None:
        target = getattr(sys, name)
        target.write(text)
        target.flush()

    def end(self) -> None:
        """Do nothing: a terminal shows what comes late as it shows all else."""

    def display(self, kind: str, content: Content) -> None:
        """Show what a terminal can show."""
        if kind == "display_data":
            publish_display_data(dict(content["data"]), dict(content["metadata"]))

    def comm(self, *_: object) -> None:
        """Do nothing: a terminal draws no widgets."""


def sink_of_running_cell(shell: InteractiveShell) -> Sink:
    """Return the sink for the cell that the shell is about to run."""
    if kernel_of(shell) is None:
        return TerminalSink()
    header = request_of(shell).get("header", {})
    if has_reader(shell):
        return KernelSink(shell, header)
    return KernelSink(shell, header, vars(shell).setdefault("_monarch_nb_headless", Headless()))
