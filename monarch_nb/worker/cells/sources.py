"""Tracebacks, debuggers and `inspect` on a rank find the text of the controller's cells.

Rules: a cell is asked for when its text is first looked for, and never again, also when nobody
knows it. The inbox thread does not ask: it would wait for itself.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from monarch_nb.core.wire.messages.cells import GetSource, SourceText
from monarch_nb.process.futures.ask_all import Question

if TYPE_CHECKING:
    from monarch_nb.process.process import Proc

WAIT_S: Final = 2.0
_CELL: Final = re.compile(
    r".*[/\\]ipykernel_[0-9]+[/\\][^/\\]+\.py|<(ipython-input|mesh cell)[- ].*>"
)


def install(proc: Proc) -> None:
    """Have `linecache` ask the controller for the text of cells."""
    read: Callable[..., list[str]] = linecache.updatecache

    def updatecache(filename: str, module_globals: Mapping[str, object] | None = None) -> list[str]:
        return read(filename, module_globals) or _fetched(proc, filename)

    linecache.updatecache = updatecache
    # `inspect` looks for the text of a function in no file only if its module has a loader
    vars(sys.modules["__main__"])["__loader__"] = CellLoader()


class CellLoader:
    """Stands for where the functions of cells come from; `linecache` has their text."""


def _fetched(proc: Proc, filename: str) -> list[str]:
    if not _CELL.fullmatch(filename) or proc.links.forked or proc.links.is_receiving():
        return []
    question = Question(proc, {proc.controller: GetSource(filename)})
    proc.links.flush()
    answer = question.wait(WAIT_S).get(proc.controller)
    text = (answer.text or "") if isinstance(answer, SourceText) else ""
    lines = text.splitlines(keepends=True)
    linecache.cache[filename] = len(text), None, lines, filename
    return lines
