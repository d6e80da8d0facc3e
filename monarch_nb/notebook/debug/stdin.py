"""A line of text from the person in front of a cell, also for threads other than the main one.

Rules of the file: a question can be taken back at any time; an answer belongs to the question that
it names; one question is asked at a time, the user's own `input()` included.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.shells import Header, Kernel, Message, kernel_of, request_of

LOOK_S: Final = 0.01


class Asker(Protocol):
    """Who answers for a cell."""

    def ask(self, prompt: str, is_over: Callable[[], bool]) -> str | None:
        """Return the line that was typed; None if the question was over before. Any thread."""


class KernelAsker:
    """The front end of a kernel's cell."""

    def __init__(self, kernel: Kernel, header: Header, ident: object) -> None:
        self._kernel = kernel
        self._parent = {"header": header}
        self._ident = ident

    def ask(self, prompt: str, is_over: Callable[[], bool]) -> str | None:
        with _turn(self._kernel, is_over) as is_mine:
            if not is_mine:
                return None
            kernel = self._kernel
            content = {"prompt": prompt, "password": False}
            request = kernel.session.send(
                kernel.stdin_socket, "input_request", content, self._parent, ident=self._ident
            )
            return self._answer(request["header"]["msg_id"], is_over)

    def _answer(self, asked: str, is_over: Callable[[], bool]) -> str | None:
        socket = self._kernel.stdin_socket
        while not is_over():
            if not socket.poll(LOOK_S * 1e3):
                continue
            with contextlib.suppress(ValueError):  # not signed: not from our front end
                _, reply = self._kernel.session.recv(socket)
                if reply is not None and _answers(reply, asked):
                    return str(reply["content"].get("value", ""))
        return None


def _answers(reply: Message, asked: str) -> bool:
    # Some clients do not say which question they answer
    return bool(reply.get("parent_header", {}).get("msg_id", asked) == asked)


class TerminalAsker:
    """The terminal of IPython. A question there stays until a line is typed."""

    def ask(self, prompt: str, is_over: Callable[[], bool]) -> str | None:
        if is_over():
            return None
        try:
            return input(prompt)
        except EOFError:
            return None


@contextlib.contextmanager
def _turn(kernel: Kernel, is_over: Callable[[], bool]) -> Iterator[bool]:
    # Inside, the kernel's stdin is this thread's; False: it was over before
    lock = _lock_of(kernel)
    while not lock.acquire(timeout=LOOK_S):
        if is_over():
            yield False
            return
    try:
        yield True
    finally:
        lock.release()


def _lock_of(kernel: Kernel) -> threading.Lock:
    # Who holds it may use the stdin channel; `input()` of cells does too, from now on
    found: threading.Lock | None = vars(kernel).get("_monarch_nb_asking")
    if found is None:
        found = threading.Lock()
        kernel._monarch_nb_asking = found
        own = kernel._input_request

        def in_turn(*args: object, **options: object) -> object:
            with found:
                return own(*args, **options)

        kernel._input_request = in_turn
    return found


def asker_of_running_cell(shell: InteractiveShell) -> Asker | None:
    """Return who answers for the cell that the shell is about to run; None if nobody can."""
    kernel = kernel_of(shell)
    if kernel is None:
        return TerminalAsker() if sys.stdin is not None and sys.stdin.isatty() else None
    parent = request_of(shell)
    if not parent.get("content", {}).get("allow_stdin", False):
        return None
    _lock_of(kernel)
    return KernelAsker(kernel, parent.get("header", {}), _ident(kernel))


def _ident(kernel: Kernel) -> object:
    current = getattr(kernel, "_get_shell_context_var", None)
    return kernel._parent_ident["shell"] if current is None else current(kernel._shell_parent_ident)
