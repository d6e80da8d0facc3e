"""What a widget shows: its values, put together from the messages about it.

Rule of the file: values stay as they travel: JSON, and buffers by their paths in it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from monarch_nb.control.api import CommEvent

_UPDATES: Final = ("update", "echo_update")


def changes_of(event: CommEvent) -> set[str]:
    """The names of the values that an update of a rank changes; empty for any other message, and
    for what answers the front end."""
    data = event.content["data"]
    if event.kind != "comm_msg" or event.parent or data.get("method") != "update":
        return set()
    paths = data.get("buffer_paths") or []
    return {*(data.get("state") or ()), *(path[0] for path in paths if path)}


class WidgetState:
    """The last values of a widget, as they travel: JSON, and buffers by their paths in it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._buffers: dict[tuple[str | int, ...], bytes] = {}

    def take(self, data: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Keep what a message says, if it says values."""
        state = data.get("state")
        if not isinstance(state, dict) or data.get("method", "update") not in _UPDATES:
            return
        paths = data.get("buffer_paths") or []
        new = {tuple(path): raw for path, raw in zip(paths, buffers, strict=False) if path}
        changed = {*state, *(path[0] for path in new)}
        kept = {path: raw for path, raw in self._buffers.items() if path[0] not in changed}
        self._buffers = {**kept, **new}
        self.values = {**self.values, **state}

    def message(
        self, comm_id: str, names: Collection[str] | None = None
    ) -> tuple[dict[str, object], dict[str, object], list[bytes]]:
        """All of it, or the values of these names, as an update: content, metadata, buffers."""
        wanted = (
            names if names is not None else {*self.values, *(path[0] for path in self._buffers)}
        )
        values = {name: value for name, value in self.values.items() if name in wanted}
        buffers = {path: raw for path, raw in self._buffers.items() if path[0] in wanted}
        data = {
            "method": "update",
            "state": values,
            "buffer_paths": [list(path) for path in buffers],
        }
        return {"comm_id": comm_id, "data": data}, {}, list(buffers.values())

    def whole(self) -> dict[str, object]:
        widgets: Any = sys.modules["ipywidgets.widgets.widget"]
        values = copy.deepcopy(self.values)
        widgets._put_buffers(values, list(self._buffers), list(self._buffers.values()))
        return values
