"""What is typed runs on the mesh without `%%mesh`: `%mesh auto on`, or the ranks chosen for a cell.

Rule of the file: it changes text before IPython reads it, and only that of cells which a person has
typed: not what code runs (`run_cell`), not silent requests of the front end, not commands to the
mesh itself. `%%local` keeps a cell in the controller. What a person has chosen for a cell in the
page, and would stand after `%%mesh`, comes beside its text, in the request's
`metadata["monarch"]["mesh"]`; a cell magic of the cell's own comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from IPython.core.interactiveshell import InteractiveShell
from IPython.terminal.prompts import Prompts

from monarch_nb.notebook.shells import kernel_of, request_of

if TYPE_CHECKING:
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

_HERE: Final = re.compile(
    r"\s*(\?{1,2}\s*|[\w.,\s]+=\s*)?"  # help on it, its value in a variable
    r"(%%?(mesh|px)\b|%(autopx|pxconfig|load_ext|reload_ext|unload_ext|config)\b)"
)
_LOCAL: Final = re.compile(r"\s*%%local\s*$")


class AutoTransform:
    """The transform of one shell's cells."""

    has_side_effects = True  # IPython: not while it only wants to know if a cell is complete

    def __init__(self, shell: InteractiveShell, is_nested: Callable[[], bool]) -> None:
        self._line: str | None = None
        self._shell = shell
        self._is_nested = is_nested

    @property
    def line(self) -> str | None:
        """What stands after the `%%mesh` that cells get; None: they get none."""
        return self._line

    def turn(self, line: str | None) -> None:
        """Send cells with this after `%%mesh`, or with None none."""
        self._line = line

    def install(self) -> Callable[[], None]:
        """Begin to read cells. Returns what ends it."""
        transforms = self._shell.input_transformers_cleanup
        transforms.insert(0, self)
        unmark = self._mark_prompt()

        def undo() -> None:
            transforms.remove(self)
            unmark()

        return undo

    def has_sent(self, source: str) -> bool:
        """Tell whether the cell with this text has been sent to the mesh by itself."""
        return self.line_for(source.splitlines(), self._line_of_request()) is not None

    def _mark_prompt(self) -> Callable[[], None]:
        # Terminal IPython: the prompt says where the next cell will run
        shell: Any = self._shell
        before = getattr(shell, "prompts", None)
        if before is None:
            return lambda: None
        shell.prompts = _Prompts(shell, self)
        return lambda: setattr(shell, "prompts", before)

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the lines of a cell, as they are to be run."""
        first = _first(lines)
        if _LOCAL.match(first):
            at = lines.index(first)
            comment = first.replace("%%local", "# in the controller")
            return [*lines[:at], comment, *lines[at + 1 :]]
        line = self.line_for(lines, self._line_of_request())
        return lines if line is None or self._is_not_typed() else [f"%%mesh {line}\n", *lines]

    def line_for(self, lines: list[str], meant: str | None = None) -> str | None:
        """Return what will stand after `%%mesh` for these lines; `meant` was chosen for their cell.
        None: nothing.
        """
        first = _first(lines)
        if not first or _LOCAL.match(first) or _HERE.match(first):
            return None
        is_magic = first.lstrip().startswith("%%")
        return self.line if meant is None or is_magic else meant

    def _is_not_typed(self) -> bool:
        if self._is_nested():
            return True
        if kernel_of(self._shell) is None:
            return False
        content = request_of(self._shell).get("content", {})
        return bool(content.get("silent") or not content.get("store_history", True))

    def _line_of_request(self) -> str | None:
        # What the page asks for the cell that is run now; None if it asks for nothing
        request = request_of(self._shell)
        is_cell = request.get("header", {}).get("msg_type") == "execute_request"
        asked = request.get("metadata", {}).get("monarch") if is_cell else None
        line = asked.get("mesh") if isinstance(asked, dict) else None
        return " ".join(line.split()) if isinstance(line, str) else None


class _Prompts(Prompts):
    """`mesh gpus=0:2 In [4]:` while cells go to the mesh."""

    def __init__(self, shell: TerminalInteractiveShell, auto: AutoTransform) -> None:
        super().__init__(shell)
        self._auto = auto

    def in_prompt_tokens(self) -> list[tuple[Any, str]]:
        own: Any = super()  # half typed
        tokens: list[tuple[Any, str]] = own.in_prompt_tokens()
        line = self._auto.line
        return tokens if line is None else [(tokens[0][0], f"mesh {line}".rstrip() + " "), *tokens]


def _first(lines: list[str]) -> str:
    return next((line for line in lines if _is_code(line)), "")


def _is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")
