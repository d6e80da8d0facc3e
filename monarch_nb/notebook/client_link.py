"""The client of a session, once one runs: who listens to it, and which cell its calls are for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_nb.notebook.cells.registry import CellRegistry

if TYPE_CHECKING:
    from monarch_nb.control.api import Client, Control
    from monarch_nb.core.wire.messages.cells import WidgetMessage


class ClientLink:
    """Any thread may call; a client is followed by another one when it has been shut down."""

    def __init__(self, control: Control, cells: CellRegistry) -> None:
        self._control = control
        self._cells = cells
        self._client: Client | None = None
        self._listeners: list[Callable[[Client], None]] = []
        self._attaching = threading.Lock()

    @property
    def client(self) -> Client | None:
        return self._client

    def on_attach(self, listener: Callable[[Client], None]) -> None:
        """Call `listener(client)` for each client, before a cell runs with it."""
        self._listeners.append(listener)

    def attach(self) -> Client | None:
        """Listen to the client, if one runs, and give its calls the tag of the running cell."""
        client = self._control.running_client()
        if client is None:
            return None
        with self._attaching:  # buttons of the mesh view have threads of their own
            is_new = client is not self._client
            self._client = client
        if is_new:
            for listener in self._listeners:
                listener(client)
        if (cell := self._cells.running) is not None:
            client.tag_calls(cell.tag)
        return client

    def send_comm(self, process: int, message: WidgetMessage, buffers: Sequence[bytes]) -> None:
        """Send a front end's message to a widget of a rank."""
        if self._client is not None:
            self._client.comms.send(process, message, buffers)
