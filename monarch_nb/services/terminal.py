"""A shell on a host, in this process's terminal: keys go there, what it writes comes here."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from typing import Any, Final

from monarch_nb.actors.definition import Actor, concurrent_endpoint, endpoint
from monarch_nb.actors.ports import Channel, Port
from monarch_nb.meshes.proc_mesh import HostMesh

_CHUNK: Final = 1 << 16
_BY_SIGNAL: Final = 128
_END: Final = b""
_END_OF_INPUT: Final = b"\x04"  # a terminal's
_ENDS: Final = 15
_BETWEEN_S: Final = 0.2
# A session's leader that opens a terminal has it as its own, and with it job control
_TAKE_TERMINAL: Final = 'exec "$1" <"$0" >"$0" 2>&1'


class Terminal(Actor):
    """The host's end: a shell on a terminal of its own."""

    def __init__(self) -> None:
        self._keyboard, self._screen = pty.openpty()
        self._shell: subprocess.Popen[bytes] | None = None

    @concurrent_endpoint
    async def run(
        self, shown: Port[bytes], size: tuple[int, int], env: dict[str, str], workdir: str | None
    ) -> int:
        """Run a shell to its end, `shown` gets what it writes; return its exit code."""
        self._resize(size)
        variables = {**os.environ, **env}
        program = variables.get("SHELL") or "/bin/sh"
        self._shell = subprocess.Popen(  # noqa: ASYNC220  takes a millisecond
            ["/bin/sh", "-c", _TAKE_TERMINAL, os.ttyname(self._screen), program],
            env=variables,
            cwd=workdir,
            start_new_session=True,
        )
        os.set_blocking(self._keyboard, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._keyboard, self._show, shown)
        try:
            code = await asyncio.to_thread(self._shell.wait)
        finally:
            loop.remove_reader(self._keyboard)
            self._hang_up()
        self._show(shown)
        return code if code >= 0 else _BY_SIGNAL - code

    @endpoint
    async def type(self, keys: bytes) -> None:
        """Have the shell read this."""
        await self._type(keys)

    async def _type(self, keys: bytes) -> None:
        while keys:
            try:
                keys = keys[os.write(self._keyboard, keys) :]
            except BlockingIOError:
                await asyncio.sleep(0.01)  # it does not read yet

    @endpoint
    async def resize(self, size: tuple[int, int]) -> None:
        """Take the size of the window: rows, columns."""
        self._resize(size)

    @concurrent_endpoint
    async def end_input(self) -> None:
        """Let the shell end, and a while later what still runs in it, as a closed window does."""
        for _ in range(_ENDS):  # it is lost where the shell changes the terminal's mode just then
            await self._type(_END_OF_INPUT)
            await asyncio.sleep(_BETWEEN_S)
        self._hang_up()

    def _resize(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def _hang_up(self) -> None:
        if self._shell is None:
            return
        groups = {self._shell.pid}
        with contextlib.suppress(OSError):
            groups.add(os.tcgetpgrp(self._keyboard))
        for group in groups - {0}:  # where the terminal is nobody's any more
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGHUP)

    def _show(self, shown: Port[bytes]) -> None:
        with contextlib.suppress(OSError):  # nothing more for now
            while said := os.read(self._keyboard, _CHUNK):
                shown.send(said)


def shell(
    host_mesh: HostMesh, env: Mapping[str, str] | None = None, workdir: str | None = None
) -> int:
    """Open a shell on a host in this terminal; return its exit code when it has ended.

    Args:
        host_mesh: a mesh of one host.
        env: more environment variables; `SHELL` says which shell.
        workdir: the folder it starts in.

    Raises:
        ValueError: not one host.
        RuntimeError: no terminal here, as in a notebook.
    """
    if host_mesh.size() != 1:
        raise ValueError(
            f"shell needs a singleton HostMesh, this one has {host_mesh.size()} hosts: slice it"
        )
    keyboard, screen = _descriptors()
    procs = host_mesh.spawn_procs(name="shell")
    try:
        terminal = procs.spawn("terminal", Terminal)
        shown, told = Channel[bytes].open()
        ended = terminal.run.call_one(shown, _size(screen), dict(env or {}), workdir)
        ended.add_done_callback(lambda _: shown.send(_END))  # whatever ended it
        with _raw(keyboard), _sizes_told(screen, terminal), _keys_sent(keyboard, terminal):
            while said := told.recv().get():
                _write(screen, said)
        code: int = ended.get()
    finally:
        procs.stop("the shell has ended").get()
    return code


def _descriptors() -> tuple[int, int]:
    try:
        return sys.stdin.fileno(), sys.stdout.fileno()
    except (OSError, AttributeError):
        raise RuntimeError("shell needs a terminal; exec_command runs commands without") from None


def _size(screen: int) -> tuple[int, int]:
    try:
        found = os.get_terminal_size(screen)
    except OSError:
        return 24, 80
    return found.lines, found.columns


def _write(screen: int, said: bytes) -> None:
    while said:
        said = said[os.write(screen, said) :]


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    if not os.isatty(keyboard):
        yield
        return
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard, termios.TCSADRAIN)  # what was typed meanwhile stays
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _sizes_told(screen: int, terminal: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda *_: terminal.resize.broadcast(_size(screen)))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextlib.contextmanager
def _keys_sent(keyboard: int, terminal: Any) -> Iterator[None]:
    ended, end = os.pipe()

    def send() -> None:
        while ended not in (ready := select.select([keyboard, ended], [], [])[0]):
            keys = os.read(keyboard, _CHUNK) if ready else b""
            if not keys:
                terminal.end_input.broadcast()
                return
            terminal.type.broadcast(keys)

    sender = threading.Thread(target=send, name="monarch-keys", daemon=True)
    sender.start()
    try:
        yield
    finally:
        os.close(end)
        sender.join()
        os.close(ended)
