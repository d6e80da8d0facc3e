"""`%mesh interrupt` and `stacks`: ranks that work too long are stopped, ended, looked into."""

from __future__ import annotations

import argparse
from typing import Any, Final

from monarch_nb.core.folding import fold_outputs, rank_words
from monarch_nb.notebook import options, whereabouts
from monarch_nb.notebook.command import Command, say
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.selection import check_ranks
from monarch_nb.notebook.session import Session

_INTERRUPT: Final = Parser("%mesh interrupt", "%mesh interrupt, or %mesh interrupt --kill 3")
_INTERRUPT.add_argument("--kill", type=options.ranks, metavar="RANKS")
_INTERRUPT.add_argument("--name")

_STACKS: Final = Parser("%mesh stacks", "%mesh stacks, or %mesh stacks 3")
_STACKS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_STACKS.add_argument("--name")


def _interrupt(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    session.attach()
    if chosen.kill is not None:
        _kill(session, mesh, chosen.kill)
    elif session.runtime.interrupt(mesh):
        say(f"{mesh.name}: interrupted")
    else:
        say(f"{mesh.name}: nothing to interrupt. %mesh stacks shows where its ranks are")


def _kill(session: Session, mesh: Any, ranks: tuple[int, ...]) -> None:
    check_ranks(mesh, ranks)
    session.kill(mesh, ranks)
    say(f"{mesh.name}: {rank_words(ranks)} killed. %mesh heal starts them again")


def _stacks(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    check_ranks(mesh, ranks)
    found = session.runtime.whereabouts(mesh, ranks)
    texts = {rank: whereabouts.stack(session.shell, frames) for rank, frames in found.items()}
    for group in fold_outputs(texts):
        text = texts[group.ranks[0]] or "  idle"
        say(f"{rank_words(group.ranks)}:\n{text}")
    if silent := sorted(set(ranks).difference(found)):
        say(f"{rank_words(silent)}: no answer; %mesh status shows why")


INTERRUPT: Final = Command(_INTERRUPT, _interrupt, (
    ("interrupt [--name MESH]", "KeyboardInterrupt on every rank of it that works"),
    ("    --kill RANKS", "end the processes of these ranks: 3 or 0,2 or 0-3"),
))  # fmt: skip
STACKS: Final = Command(_STACKS, _stacks, (
    ("stacks [RANKS] [--name MESH]", "where ranks are in their code, also in C that hangs"),
))  # fmt: skip
