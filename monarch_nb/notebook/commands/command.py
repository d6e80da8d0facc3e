"""What a word after `%mesh` is: how its options are read, what it does, and what the help says of
it.

Rule of the file: no command is known here; each lives in a module of `commands`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session


@dataclass(frozen=True)
class Command:
    """One command.

    `usage` holds what may be typed (without `%mesh`) and what that does, for the help; the first
    names the command. `run` returns the value of the line, or None.
    """

    parser: Parser
    run: Callable[[Session, argparse.Namespace], Any]
    usage: tuple[tuple[str, str], ...]


def say(text: str) -> None:
    """Print a line below the cell of the magic."""
    print(text, flush=True)  # noqa: T201
