"""`PortForwarder`: TCP connections carried from a port of one process to a port of another, rank by
rank, as messages between two actors.

Rules: bytes that were taken from one socket arrive at the other in order; the end of one direction
ends that direction alone; a connection that breaks at one end is reset at the other. No more than a
window of bytes is on its way: who does not read holds up who writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.actors.ports import Channel, Port, PortReceiver
from monarch_nb.core.shape.extent import Point
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.net import wire
from monarch_nb.process.context import current_rank

_LOOPBACK: Final = "127.0.0.1"
_CHUNK: Final = 1 << 18
_WINDOW: Final = 16
"""Chunks on their way that were not written at the other end yet."""


class _Bytes(NamedTuple):
    data: bytes


class _Written(NamedTuple):
    """A chunk of the other end's was written here."""


class _End(NamedTuple):
    """The sender writes no more."""


class _Broken(NamedTuple):
    """The connection at the sender's end is lost."""


_Word = _Bytes | _Written | _End | _Broken


class _Connection:
    """One end of a carried connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: Port[_Word],
        words: PortReceiver[_Word],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._other = other
        self._words = words
        self._room = asyncio.Semaphore(_WINDOW)
        self._arrived: asyncio.Queue[_Bytes | _End] = asyncio.Queue()
        self._other_has_ended = asyncio.Event()

    async def carry(self) -> None:
        """Carry both directions until both have ended, or one breaks."""
        tasks = [
            asyncio.ensure_future(each) for each in (self._both(), self._write(), self._hear())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        except (OSError, RuntimeError, asyncio.CancelledError):
            self._writer.transport.abort()
            with contextlib.suppress(RuntimeError):  # the other end is gone with its process
                self._other.send(_Broken())
        finally:
            for each in tasks:
                each.cancel()
            await _close(self._writer)

    async def _both(self) -> None:
        while data := await self._reader.read(_CHUNK):
            await self._room.acquire()
            self._other.send(_Bytes(data))
        self._other.send(_End())
        await self._other_has_ended.wait()
        for _ in range(_WINDOW):  # the other end has written all: it has nothing to tell any more
            await self._room.acquire()

    async def _hear(self) -> None:
        # Never waits for the socket: who is held up there must hear that he has room, or of the end
        while True:
            word = await self._words.recv()
            if isinstance(word, _Written):
                self._room.release()
            elif isinstance(word, _Broken):
                raise ConnectionResetError
            else:
                self._arrived.put_nowait(word)

    async def _write(self) -> None:
        while True:
            word = await self._arrived.get()
            if isinstance(word, _End):
                self._writer.write_eof()
                self._other_has_ended.set()
            else:
                self._writer.write(word.data)
                await self._writer.drain()
                self._other.send(_Written())


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class _Connections:
    """All connections of one end, which end with its actor."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, connection: _Connection) -> None:
        task = asyncio.ensure_future(connection.carry())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        tasks = list(self._tasks)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class ForwardedTo(Actor):
    """On each rank: the end that reaches a service there."""

    def __init__(self) -> None:
        self._port = 0
        self._connections = _Connections()

    @endpoint
    async def reach(self, port: int | Callable[[Point], int]) -> None:
        """Have connections lead to this port."""
        self._port = _checked_port(port(current_rank()) if callable(port) else port)

    @endpoint
    async def connect(self, other: Port[_Word]) -> Port[_Word]:
        """Connect to the service for the other end of a connection; return where that talks to."""
        reader, writer = await asyncio.open_connection(_LOOPBACK, self._port)
        mine, words = Channel[_Word].open()
        self._connections.add(_Connection(reader, writer, other, words))
        return mine

    async def __cleanup__(self, exc: Exception | None) -> None:  # type: ignore[override]  # async
        await self._connections.end()


class ForwardedFrom(Actor):
    """On each rank: the end that listens."""

    def __init__(self) -> None:
        self._to: Any = None  # an actor `ForwardedTo`
        self._connections = _Connections()
        self._server: asyncio.Server | None = None

    @endpoint
    async def listen(self, to: Any, address: str | Callable[[Point], str]) -> None:
        """Listen, and lead what connects to the actor `to` at the same place."""
        point = current_rank()
        self._to = to.slice(**dict(point))
        place = _checked_address(address(point) if callable(address) else address)
        self._server = await asyncio.start_server(self._accept, sock=wire.loopback_listener(*place))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine, words = Channel[_Word].open()
        try:
            other = await self._to.connect.call_one(mine)
        except BaseException as error:
            writer.transport.abort()
            _log.warning("a forwarded connection leads nowhere: %s", error)
            if not isinstance(error, RuntimeError):
                raise
        else:
            self._connections.add(_Connection(reader, writer, other, words))

    async def __cleanup__(self, exc: Exception | None) -> None:  # type: ignore[override]  # async
        if self._server is not None:
            self._server.close()
        await self._connections.end()


class PortForwarder(Actor):
    """Carries TCP connections between processes of two meshes, rank by rank: to look from here at a
    service that listens on other hosts. What it carries ends when it is stopped.

    Example:
        >>> forwarder = this_proc().spawn("forwarder", PortForwarder)    # doctest: +SKIP
        >>> forwarder.forward.call_one(                                  # doctest: +SKIP
        ...     trainers, 6006, this_proc(), "127.0.0.1:6006"
        ... ).get()

    Name and meaning are Monarch's.
    """

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str],
    ) -> None:
        """Listen on each process of `src_proc_mesh`, until the forwarder is stopped.

        Args:
            dst_proc_mesh: processes that reach the service on their loopback interface.
            dst_port: its port, or a function from the coordinates to it.
            src_proc_mesh: processes that listen; a mesh of the same axes and sizes.
            src_address: where they listen, as "127.0.0.1:6006", or a function to it; on loopback
                only. All users of that host reach the service there: nobody is asked who he is.

        Raises:
            ValueError: meshes of different shapes, a port or an address that is none, an address
                that other hosts reach.
            OSError: nobody can listen there.
        """
        if dst_proc_mesh.extent != src_proc_mesh.extent:
            raise ValueError(
                "the two meshes must have the same shape, and are "
                f"{dst_proc_mesh.extent} and {src_proc_mesh.extent}"
            )
        if not callable(dst_port):
            _checked_port(dst_port)
        if not callable(src_address):
            _checked_address(src_address)
        number = next(_numbers)
        to = dst_proc_mesh.spawn(f"forwarded-to-{number}", ForwardedTo)
        listening = src_proc_mesh.spawn(f"forwarded-from-{number}", ForwardedFrom)
        try:
            await to.reach.call(dst_port)
            await listening.listen.call(to, src_address)
        except BaseException:
            await listening.stop()
            await to.stop()
            raise


_numbers: Final = itertools.count(1)
_log: Final = logging.getLogger(__name__)


def _checked_port(port: object) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise ValueError(f"a port is a number from 1 to 65535, not {port!r}")
    return port


def _checked_address(address: object) -> tuple[str, int]:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdecimal():
        raise ValueError(f"an address is written as '127.0.0.1:6006', not {address!r}")
    return host.removeprefix("[").removesuffix("]"), _checked_port(int(port))
