"""`%mesh auto`: whether cells go to the mesh by themselves."""

from __future__ import annotations

import argparse
from typing import Final

from monarch_nb.core.shape import selection
from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session


class _AutoParser(Parser):
    """What follows `on` is read as a `%%mesh` line is."""

    def own(self, words: list[str]) -> list[str]:
        return words[:1]


_AUTO: Final = _AutoParser(
    "%mesh auto", "%mesh auto on, or %mesh auto on gpus=0:2, or %mesh auto off"
)
_AUTO.add_argument("state", nargs="?", choices=("on", "off"))
_AUTO.add_argument("cell", nargs=argparse.REMAINDER)


def _auto(session: Session, chosen: argparse.Namespace) -> None:
    if chosen.state == "on":
        _on(session, " ".join(chosen.cell))
    elif chosen.state == "off":
        session.auto.turn(None)
    if session.auto.line is None:
        say("cells run in the controller; %%mesh sends one to the mesh")
    else:
        line = f" {session.auto.line}" if session.auto.line else ""
        say(
            f"every cell now is a %%mesh{line} cell; %%local keeps one here, %mesh auto off ends it"
        )


def toggle(session: Session) -> None:
    """Turn it on or off, as `%autopx` does."""
    state = "off" if session.auto.line is not None else "on"
    _auto(session, argparse.Namespace(state=state, cell=[]))


def _on(session: Session, line: str) -> None:
    # Refuse at once what no cell could be run with
    chosen = options.parse_cell(line)
    selection.parts(session.meshes.pick(chosen.name), chosen.selection)
    session.auto.turn(line)


AUTO: Final = Command(_AUTO, _auto, (
    ("auto on [SELECTION ...]", "send every cell to the mesh; %%local keeps one here"),
    ("auto off", "no more"),
))  # fmt: skip
