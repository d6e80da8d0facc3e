"""The line that says how far the hosts of a mesh have come: `queued (Priority) -> 3/4 hosts`.

Rule of the file: a page has one line, changed in place. A terminal, which cannot change one, gets a
line for each step.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from monarch_nb.control.jobs.status import stage_text
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.mime import text_content

if TYPE_CHECKING:
    from monarch_nb.control.api import JobStatus


class LiveLine:
    """The line of one cell. `step(kind, text)` changes what the last step says, or adds a step."""

    def __init__(self, output: CellOutput) -> None:
        self._output = output
        self._id = uuid.uuid4().hex
        self._steps: list[tuple[str, str]] = []

    def step(self, kind: str, text: str) -> None:
        is_next = not self._steps or self._steps[-1][0] != kind
        if not is_next and self._steps[-1][1] == text:
            return
        is_first = not self._steps
        self._steps = [*(self._steps if is_next else self._steps[:-1]), (kind, text)]
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
