"""What browsers send, and what asks a kernel from a terminal."""

import json

from monarch_nb.control.inspection.asked import Asked
from monarch_nb.notebook.view.browser import protocol


def browser_message(data: bytes) -> bool:
    """Any JSON value is a message, or Malformed with a sentence that repeats little of it; nothing
    is raised."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # Jupyter has refused it
        return False
    found = protocol.parse(value)
    if not isinstance(found, protocol.Malformed):
        return True
    assert found.error
    assert len(found.error) < 2000
    return False


def terminal_question(data: bytes) -> bool:
    """Any line is refused with ValueError, or is a question that is written as it is read."""
    try:
        found = Asked.from_line(data)
    except ValueError:
        return False
    assert Asked.from_line(found.to_line()) == found
    return True
