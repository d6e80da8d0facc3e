"""What a run says, as text, for who follows it in a terminal: cells as they begin, what they show.

Rule of the file: it only grows, and each piece is there once it is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any


class Transcript:
    """The log of a run. Colours of what cells print stay in it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8", errors="replace")
        self._is_mid_line = False

    def begin(self, number: int, count: int, title: str) -> None:
        """Name the cell that begins."""
        self._say(f"cell {number}/{count}: {title}\n")

    def show(self, output: Any) -> None:
        """Have what a cell shows: an output as notebooks have it."""
        if output.output_type == "stream":
            text = output.text
        elif output.output_type == "error":
            text = "\n".join(output.traceback).rstrip("\n") + "\n"
        else:
            kinds = ", ".join(output.data)
            text = str(output.data.get("text/plain", f"<{kinds}>")).rstrip("\n") + "\n"
        self._say(text)

    def end_cell(self) -> None:
        """Begin a new line, should the last one have no end."""
        if self._is_mid_line:
            self._say("\n")

    def end(self, said: str) -> None:
        """Say how the run has ended."""
        self._say(f"{said}\n")
        self._file.close()

    def _say(self, text: str) -> None:
        if text:
            self._is_mid_line = not text.endswith("\n")
            self._file.write(text)
            self._file.flush()
