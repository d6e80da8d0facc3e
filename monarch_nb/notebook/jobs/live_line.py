"""The line below a cell that says how far the hosts of a mesh have come; see `steps.py`.

Rule of the file: a page has one line, changed in place. A terminal, which cannot change one, gets a
line for each step.
"""

from __future__ import annotations

import uuid

from monarch_nb.notebook.jobs.steps import Steps
from monarch_nb.notebook.output.cell_output import CellOutput
from monarch_nb.notebook.output.mime import text_content


def steps_below(output: CellOutput) -> Steps:
    """Return steps that are shown below a cell."""
    display_id = uuid.uuid4().hex
    is_first = True

    def show(whole: str, new: str) -> None:
        nonlocal is_first
        if not output.sink.redraws:
            if new:
                output.say("stdout", f"{new}\n")
        elif is_first:
            output.show(text_content(whole), display_id)
        else:
            output.redraw(text_content(whole), display_id)
        is_first = False

    return Steps(show)
