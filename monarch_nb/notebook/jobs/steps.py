"""How far the hosts of a mesh have come: `queued (Priority) -> 3/4 hosts -> ranks up in 2.1 s`.

Pure: what shows the steps (a line of a cell, the panel) is told of each, and may read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monarch_nb.control.jobs.status import stage_text

if TYPE_CHECKING:
    from monarch_nb.control.api import JobStatus

_COUNTED: Final = ("joining", "up")  # both count hosts: the count of all takes the other's place

Listener = Callable[[str, str], None]
"""Gets the whole line, and the step that is new; `""` where only the last one says more."""


class Steps:
    """Of one start of hosts.

    Example:
        >>> steps = Steps()
        >>> steps.add("queued", "queued (Priority)")
        >>> steps.add("joining", "1/2 hosts")
        >>> steps.add("joining", "2/2 hosts")
        >>> steps.text
        'queued (Priority) -> 2/2 hosts'
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self._steps: list[tuple[str, str]] = []

    @property
    def is_of_cell(self) -> bool:
        """Whether they are shown in a cell, which the stop button ends."""
        return self._listener is not None

    @property
    def text(self) -> str:
        return " -> ".join(said for _, said in self._steps)

    def add(self, kind: str, text: str) -> None:
        """Change what the last step says if it is of this kind, else add a step."""
        last_kind, last_text = self._steps[-1] if self._steps else ("", "")
        is_next = kind != last_kind
        if not is_next and last_text == text:
            return
        is_instead = not is_next or (last_kind, kind) == _COUNTED
        self._steps = [*(self._steps[:-1] if is_instead else self._steps), (kind, text)]
        if self._listener is not None:
            self._listener(self.text, text if is_next else "")

    def follow(self, status: JobStatus) -> None:
        """Say where a job stands."""
        self.add(status.stage.value, stage_text(status))
