"""A mesh as a widget of anywidget: the live view in front ends that our extension cannot be in.

Rules of the file: what is seen comes through a channel of the session's hub, which sends from its
own thread, so that a cell that blocks the main thread holds nothing up; what a page says is only
put there. No value is synced: the one that pages read is computed when a page asks for it. This is
the only module that imports anywidget, which is an extra, and it is imported with the first widget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from anywidget import AnyWidget
from traitlets import Any as AnyValue
from traitlets import Int, List, Unicode, default

from monarch_nb.notebook.view.browser import assets

if TYPE_CHECKING:
    from monarch_nb.notebook.view.answers.hub import Channel, Send
    from monarch_nb.notebook.view.picture.snapshots import State

MAX_WIDGETS: Final = 64
"""Of more parts of meshes that were shown, the one that no page has spoken of for longest goes."""


class MeshWidget(AnyWidget):
    """One part of a mesh, shown any number of times.

    `read_state` gives the `state` message of now; `connect` opens a channel for what is sent.
    """

    mesh = Unicode().tag(sync=True)
    ranks = List(Int(), default_value=None, allow_none=True).tag(sync=True)
    snapshot = AnyValue().tag(sync=True, to_json=lambda _, widget: widget._read_state())
    _esm = Unicode().tag(sync=True)
    _css = Unicode().tag(sync=True)
    _channel: Channel | None = None

    def __init__(
        self,
        mesh: str,
        ranks: Iterable[int] | None,
        read_state: Callable[[], State],
        connect: Callable[[Send], Channel],
    ) -> None:
        self._read_state = read_state
        self._channel = connect(self.send)  # before the page knows the widget and may speak
        self.heard_s = time.monotonic()
        try:
            super().__init__(mesh=mesh, ranks=None if ranks is None else list(ranks))
        except BaseException:
            self.close()
            raise
        _hear_as_sent(self.comm)

    @default("_esm")
    def _script(self) -> str:
        return assets.script()

    @default("_css")
    def _style(self) -> str:
        return assets.style()

    @property
    def is_closed(self) -> bool:
        """By us, or by `Widget.close_all()`."""
        return self.comm is None

    def close(self) -> None:
        """Take it from all pages."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self.comm is not None:
            self.layout.close()
        super().close()

    def set_state(self, sync_data: object) -> None:
        """Change nothing: no value is the page's to change."""

    def _handle_custom_msg(self, content: object, _buffers: object) -> None:
        # A page speaks: in any thread, and perhaps while another one does
        self.heard_s = time.monotonic()
        if (channel := self._channel) is not None:
            channel.receive(content)


def _hear_as_sent(comm: Any) -> None:
    # Pages send over a subshell so that a busy kernel hears them. ipykernel since 7.4 does not
    # follow: it takes a message to the loop that has last sent something through the comm, for a
    # widget the one that runs cells, where it waits until the cell ends.
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, named: named
