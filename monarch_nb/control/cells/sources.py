"""The text of cells, for ranks: a function that was defined in the controller runs there too."""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc


def serve(proc: Proc) -> None:
    """Answer ranks that ask for the source of a cell. Reads no file."""

    def answer(body: dict[str, Any], message: Message) -> None:
        proc.answer(message, {"text": text_of_cell(body["filename"])})

    proc.verbs["source"] = answer


def text_of_cell(filename: str) -> str | None:
    """The text that IPython or a mesh cell has left under that name; None for files."""
    match linecache.cache.get(filename):
        case (_, None, list() as lines, _):
            return "".join(lines)
        case _:
            return None
