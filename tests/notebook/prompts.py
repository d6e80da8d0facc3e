"""A person at the prompt of a debugger in a cell."""

import re
import sys
from collections.abc import Iterator
from typing import Final, Self

from monarch_nb.core.errors.folding import listed_ranks
from tests.kernel.client import Cell, KernelClient

STOPS_EARLY: Final = sys.version_info >= (3, 13)
"""Whether pdb stops at the line of `breakpoint()` itself, and not at the next one."""
_STOPPED: Final = re.compile(r"^ranks? ([\d,-]+) at ", re.MULTILINE)


def stopped(text: str) -> set[int]:
    """Return the ranks that this text says have stopped, in one line or in several."""
    return {rank for runs in _STOPPED.findall(text) for rank in listed_ranks(runs)}


class Prompt:
    """A cell that will stop. `with Prompt(kernel, code) as prompt: prompt.type("p x")`.

    What is typed is an answer to the question that is open; on leaving, the cell has ended. Nothing
    is typed before these ranks have stopped: a slow one is told of after the first question. Then
    they stand at the line below their breakpoint.
    """

    def __init__(self, kernel: KernelClient, code: str, ranks: set[int] | None = None) -> None:
        self.kernel = kernel
        self.cell: Cell = kernel.start(code, allow_stdin=True)
        self._ranks = ranks or set()
        self._read = 0

    def __enter__(self) -> Self:
        if self._ranks:
            self.kernel.until(lambda: self._ranks <= stopped(self.cell.text()))
            if STOPS_EARLY:
                self.at()
                self.kernel.answer("cast all n")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.kernel.finish(self.cell)
        else:
            self.kernel.interrupt()
        while self.kernel.is_asked():
            self.kernel.asked()

    def type(self, line: str, at: str = "") -> None:
        """Wait for a question, which is `at` if that is given, and type a line."""
        asked = self.at()
        assert at in ("", asked), f"asked {asked!r}"
        self._read = len(self.cell.text())
        self.kernel.answer(line)

    def sees(self, text: str) -> None:
        """The answer to the last line says so; before any line, what stands above the prompt."""
        self.kernel.until(lambda: text in self.cell.text()[self._read :], 10.0)

    def at(self) -> str:
        """The open question; it stays open until `reply`. One that another cell asked just before
        it ended was taken back."""
        return self.kernel.asked(of=self.cell)

    def questions(self) -> Iterator[str]:
        """Each question that is asked until the cell ends; `reply` answers it."""
        while not self.kernel.is_done(self.cell):
            if self.kernel.is_asked():
                yield self.at()
            else:
                self.kernel.settle(0.05)

    def reply(self, line: str) -> None:
        """Answer the question that `at` has given."""
        self._read = len(self.cell.text())
        self.kernel.answer(line)
