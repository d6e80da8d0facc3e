"""`%mesh debug`: the prompt of ranks that are stopped in their debuggers."""

from __future__ import annotations

import argparse
from typing import Final

from monarch_nb.notebook.command import Command
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_DEBUG: Final = Parser("%mesh debug", "%mesh debug, or %mesh debug 3")
_DEBUG.add_argument("rank", nargs="?", type=int, metavar="RANK")


def _debug(session: Session, chosen: argparse.Namespace) -> None:
    session.debugging.open(chosen.rank)


DEBUG: Final = Command(_DEBUG, _debug, (
    ("debug [RANK]", "the prompt of ranks that are stopped at a breakpoint"),
))  # fmt: skip
