"""A display that changes while its cell runs.

Rule of the file: it is drawn when that is worth its bytes, and in the end; it knows nothing of
locks, threads and front ends.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from monarch_nb.notebook.output.mime import Content


class Picture(Protocol):
    """What draws."""

    @property
    def deadline(self) -> float | None:
        """When there is something new that should be drawn; None while there is not."""

    def draw(self, now: float) -> Content:
        """What to show now."""


class Frame:
    """A place below the cell for a picture: shown once, redrawn from then on."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self._id = uuid.uuid4().hex
        self.is_up = False

    def message(self, content: Content) -> tuple[str, Content]:
        """The kind and content of the message that shows it."""
        kind = "update_display_data" if self.is_up else "display_data"
        self.is_up = True
        return kind, {"metadata": {}, **content, "transient": {"display_id": self._id}}
