"""`%mesh debug`, `pm`, `pdb`, `clear` and `debugger`: prompts of ranks that are stopped, or have
failed; `%debug` after a cell that failed on ranks; whom JupyterLab's debugger debugs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.errors import ActorError
from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.debug.target import CONTROLLER, NOBODY, Choice
from monarch_nb.notebook.errors import CellError, MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import ProcMesh

_DEBUG: Final = Parser("%mesh debug", "%mesh debug, or %mesh debug 3")
_DEBUG.add_argument("rank", nargs="?", type=int, metavar="RANK")

_PM: Final = Parser("%mesh pm", "%mesh pm, or %mesh pm 3")
_PM.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_PM.add_argument("--name")

_PDB: Final = Parser("%mesh pdb", "%mesh pdb on")
_PDB.add_argument("switch", choices=("on", "off"))
_PDB.add_argument("--name")

_CLEAR: Final = Parser("%mesh clear", "%mesh clear")
_CLEAR.add_argument("--name")

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


def _debug(session: Session, chosen: argparse.Namespace) -> None:
    session.prompts.open(chosen.rank)


def _pm(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    check_ranks(mesh, ranks)
    if not session.prompts.open_failed(_living(session, mesh, ranks)):
        raise MagicError(
            f"{mesh.name}: no failure is kept by {rank_words(ranks)}: the last cell or call there "
            "has ended well, or %mesh clear has let go of it"
        )


def _pdb(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    is_on = chosen.switch == "on"
    session.control.stop_at_failure(_living(session, mesh, mesh.ranks), on=is_on)
    stop = "stop where their code fails" if is_on else "fail without stopping"
    say(f"{mesh.name}: ranks {stop} from now on")


def _clear(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    session.control.forget_failed(_living(session, mesh, mesh.ranks))
    say(f"{mesh.name}: the frames of failures are let go, with what they held")


def _living(session: Session, mesh: ProcMesh, ranks: Iterable[int]) -> list[int]:
    lost = set(session.control.lost(mesh))
    return list(session.control.processes(mesh, [rank for rank in ranks if rank not in lost]))


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


def take_over_debug(session: Session) -> None:
    """Let `%debug` after a failure on ranks open the frames there; else it is as ever."""
    known = session.shell.magics_manager.magics["line"]
    own = known["debug"]

    def debug(line: str = "", cell: str | None = None) -> Any:
        failed = isinstance(getattr(sys, "last_value", None), CellError | ActorError)
        if line.strip() or cell or not failed:
            return as_ever(line)
        if not session.prompts.open_failed(None, session.cells.failed_tag):
            say("the ranks do not keep the frames of that failure any more")
        return None

    def as_ever(line: str) -> Any:
        known["debug"] = own  # IPython loads it when it is called, by its name
        try:
            return session.shell.run_line_magic("debug", line)
        finally:
            known["debug"] = debug

    debug.__doc__ = "Debug the last failure: on the ranks, or here. %mesh pm is for the ranks."
    known["debug"] = debug
    session.on_close(lambda: known.update(debug=own))


DEBUG: Final = Command(_DEBUG, _debug, (
    ("debug [RANK]", "the prompt of ranks that are stopped at a breakpoint"),
))  # fmt: skip
PM: Final = Command(_PM, _pm, (
    ("pm [RANKS] [--name MESH]", "pdb in the frames of the last failure; also %debug"),
))  # fmt: skip
PDB: Final = Command(_PDB, _pdb, (
    ("pdb on|off [--name MESH]", "ranks stop where their code fails"),
))  # fmt: skip
CLEAR: Final = Command(_CLEAR, _clear, (
    ("clear [--name MESH]", "let go of the frames of failures, and of their tensors"),
))  # fmt: skip
DEBUGGER: Final = Command(_DEBUGGER, _debugger, (
    ("debugger RANKS|all", "JupyterLab's debugger stops these ranks; controller: this process"),
    ("debugger off", "what it has stopped goes on"),
))  # fmt: skip
