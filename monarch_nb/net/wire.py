"""Every socket of the project is made here: the only `bind` and the only `connect`.

On one host: `ipc://` in a directory of mode 0700. Between hosts: CURVE, always (the allow-list is `auth.py`). There is no
option for plain TCP and no way to listen on every interface by accident.

Data links have no heartbeats: a unix socket does not partition, and a heartbeat that gives up on a stopped
peer would drop what is in the pipe. Whether a peer is alive is asked on a link of its own (`pulse`).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import zmq

from monarch_nb.errors import AuthError

_RECONNECT_MS: Final = 5  # a peer that is being forked binds within milliseconds
_MAX_SOCKETS: Final = 60_000
_LINGER_MS: Final = 2_000
IPC_PATH_LIMIT: Final = 107


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A ZeroMQ context for one process. Raises `RuntimeError` for a libzmq with known holes."""
    if zmq.zmq_version_info() < (4, 3, 5):
        raise RuntimeError(f"libzmq {zmq.zmq_version()} is too old: 4.3.5 or newer is needed")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


def check_private(directory: Path) -> None:
    """Refuse a directory that another user could enter. Raises `AuthError`."""
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise AuthError(f"{directory} must be a directory of mode 0700 that you own")


def inbox_path(run_dir: Path, process: int) -> str:
    """Where the process of this id listens, as an `ipc://` address."""
    path = f"{run_dir}/{process:016x}"
    if len(path.encode()) > IPC_PATH_LIMIT:
        raise ValueError(f"{path} is too long for a unix socket ({IPC_PATH_LIMIT} bytes)")
    return f"ipc://{path}"


def bind_inbox(
    context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, process: int
) -> zmq.Socket[bytes]:
    """The socket on which `process` receives everything that is sent to it on this host."""
    check_private(run_dir)
    socket = _data_socket(context, zmq.PULL)
    socket.bind(inbox_path(run_dir, process))
    return socket


def connect_outbox(
    context: zmq.Context[zmq.Socket[bytes]], run_dir: Path, process: int
) -> zmq.Socket[bytes]:
    """A socket that delivers to `process`; it may not listen yet, messages wait until it does."""
    socket = _data_socket(context, zmq.PUSH)
    socket.connect(inbox_path(run_dir, process))
    return socket


def connect_pulse(
    context: zmq.Context[zmq.Socket[bytes]],
    run_dir: Path,
    process: int,
    interval_s: float,
    timeout_s: float,
) -> zmq.Socket[bytes]:
    """A link that carries nothing but heartbeats, answered by libzmq's own thread in the peer.

    A peer that holds the GIL for minutes answers; a stopped or frozen one does not, and the link
    breaks after `timeout_s` more.
    """
    socket = _data_socket(context, zmq.PUSH)
    socket.heartbeat_ivl = int(interval_s * 1000)
    socket.heartbeat_timeout = int(timeout_s * 1000)
    socket.handshake_ivl = int(timeout_s * 1000)
    socket.reconnect_ivl = int(interval_s * 1000)
    socket.linger = 0
    socket.connect(inbox_path(run_dir, process))
    return socket


def _data_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.sndhwm = (
        0  # replies are never dropped; memory is bounded by who submits, not by the pipe
    )
    socket.rcvhwm = 0
    socket.linger = _LINGER_MS
    socket.reconnect_ivl = _RECONNECT_MS
    return socket
