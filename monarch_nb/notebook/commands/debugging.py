"""`%mesh debugger`: whom JupyterLab's debugger debugs."""

from __future__ import annotations

import argparse
from typing import Final

from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.debug.target import CONTROLLER, NOBODY, Choice
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_WORDS: Final = {"controller": CONTROLLER, "off": NOBODY}
_ALL: Final = "all"


def _whom(text: str) -> str | tuple[int, ...]:
    if text in {*_WORDS, _ALL}:
        return text
    try:
        return options.ranks(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"does not know {text!r}; it takes ranks, all, controller or off"
        ) from None


_DEBUGGER: Final = Parser("%mesh debugger", "%mesh debugger 2, or %mesh debugger all")
_DEBUGGER.add_argument("whom", nargs="?", type=_whom, metavar="RANKS|all|controller|off")
_DEBUGGER.add_argument("--name")


def _debugger(session: Session, chosen: argparse.Namespace) -> None:
    debugging = session.debugging
    if chosen.whom is None:
        say(str(debugging))
    else:
        say(debugging.choose(_choice(session, chosen)))


def _choice(session: Session, chosen: argparse.Namespace) -> Choice:
    if isinstance(chosen.whom, str) and chosen.whom != _ALL:
        return _WORDS[chosen.whom]
    mesh = session.meshes.pick(chosen.name)
    return session.debugging.ranks(mesh, None if chosen.whom == _ALL else chosen.whom)


DEBUGGER: Final = Command(_DEBUGGER, _debugger, (
    ("debugger RANKS|all", "JupyterLab's debugger stops these ranks; controller: this process"),
    ("debugger off", "what it has stopped goes on"),
))  # fmt: skip
