"""The line that says how far the hosts of a mesh have come: `queued (Priority) -> 3/4 hosts`.

Rule of the file: a page has one line, changed in place. A terminal, which cannot change one, gets a
line for each step.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from monarch_nb.control.jobs.status import stage_text
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.mime import text_content

if TYPE_CHECKING:
    from monarch_nb.control.api import JobStatus

_COUNTED: Final = ("joining", "up")  # both count hosts: the count of all takes the other's place


class LiveLine:
    """The line of one cell. `step(kind, text)` changes what the last step says, or adds a step."""

    def __init__(self, output: CellOutput) -> None:
        self._output = output
        self._id = uuid.uuid4().hex
        self._steps: list[tuple[str, str]] = []

    def step(self, kind: str, text: str) -> None:
        last_kind, last_text = self._steps[-1] if self._steps else ("", "")
        is_next, is_first = kind != last_kind, not self._steps
        if not is_next and last_text == text:
            return
        is_instead = not is_next or (last_kind, kind) == _COUNTED
        self._steps = [*(self._steps[:-1] if is_instead else self._steps), (kind, text)]
        if not self._output.sink.redraws:
            if is_next:
                self._output.say("stdout", f"{text}\n")
            return
        content = text_content(" -> ".join(said for _, said in self._steps))
        if is_first:
            self._output.show(content, self._id)
        else:
            self._output.redraw(content, self._id)

    def follow(self, status: JobStatus) -> None:
        """Say where a job stands."""
        self.step(status.stage.value, stage_text(status))
