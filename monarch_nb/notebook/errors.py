"""What a person reads when a magic or a cell fails.

Rule of the file: each exception renders itself (`_render_traceback_`, which IPython calls), without
a frame of ours, and each makes the cell's status an error, so that Run All stops. IPython prints
its own `UsageError` to stderr and publishes no error; subclasses of it are rendered like any
exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.error import UsageError
from IPython.core.getipython import get_ipython

from monarch_nb.errors import MeshError
from monarch_nb.notebook.cells import wording
from monarch_nb.notebook.display.colours import coloured


class MagicError(MeshError, UsageError):
    """What was typed cannot be done. The text says what is wrong and what to type instead."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class CellError(MeshError):
    """A cell failed on some ranks. `error.ranks` says which; `error[3]` is the record of rank 3.

    It renders as one traceback for each group of ranks that failed alike. `total` is the size of
    the mesh.
    """

    def __init__(
        self, summary: str, errors: Mapping[int, Any], traceback: str, total: int = 0
    ) -> None:
        super().__init__(summary)
        self.errors = dict(errors)
        self.traceback = traceback
        self.total = total

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that failed, in order."""
        return tuple(sorted(self.errors))

    def __getitem__(self, rank: int) -> Any:
        return self.errors[rank]

    def _render_traceback_(self) -> list[str]:
        return [*_in_colours(self.traceback), *wording.next_step(self.errors)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.errors, self.traceback, self.total)


class CellInterrupted(KeyboardInterrupt):
    """The stop button while a cell waited for its ranks; the text says what they did about it."""

    def __init__(self, summary: str, traceback: str = "") -> None:
        super().__init__(summary)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return _in_colours(f"{self.traceback}\nKeyboardInterrupt: {self}".lstrip("\n"))


def _in_colours(text: str) -> list[str]:
    has_none = str(getattr(get_ipython(), "colors", "")).lower() == "nocolor"
    return [line if has_none else coloured(line) for line in text.splitlines()]
