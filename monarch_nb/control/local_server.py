"""Who comes in at a unix socket of a private run dir: processes of the same user, nobody else."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

from monarch_nb.net.threads import helper_thread

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
_END_S: Final = 1.0


class LocalServer:
    """Calls `welcome(stream)` for each that may come in, in a thread called `name`; who gets the
    stream closes it, and returns at once."""

    def __init__(
        self,
        listener: socket.socket,
        user: int,
        name: str,
        welcome: Callable[[socket.socket], None],
    ) -> None:
        self._listener = listener
        self._user = user
        self._welcome = welcome
        self._thread = helper_thread(self._accept, name)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join(_END_S)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            if _user_of(stream) == self._user:
                self._welcome(stream)
            else:
                stream.close()


def _user_of(stream: socket.socket) -> int:
    # as the system's kernel knows it
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
