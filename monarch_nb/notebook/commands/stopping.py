"""`%mesh interrupt` and `stacks`: ranks that work too long are stopped, ended, looked into."""

from __future__ import annotations

import argparse
from typing import Final

from monarch_nb.core.errors.folding import fold_outputs, rank_words
from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.hangs import whereabouts
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_INTERRUPT: Final = Parser("%mesh interrupt", "%mesh interrupt, or %mesh interrupt --kill 3")
_INTERRUPT.add_argument("--kill", type=options.ranks, metavar="RANKS")
_INTERRUPT.add_argument("--name")

_STACKS: Final = Parser("%mesh stacks", "%mesh stacks, or %mesh stacks 3")
_STACKS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_STACKS.add_argument("--native", action="store_true")
_STACKS.add_argument("--name")


def _interrupt(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    if chosen.kill is not None:
        say(session.lifecycle.kill(mesh, chosen.kill))
    else:
        say(session.lifecycle.interrupt(mesh))


def _stacks(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    root, whys = session.lifecycle.stacks(mesh, ranks, native=chosen.native)
    if root.ranks:
        session.cells.here().output.show(whereabouts.tree_content(session.shell, root))
    for group in fold_outputs(whys):
        say(f"{rank_words(group.ranks)}: {whys[group.ranks[0]]}")


INTERRUPT: Final = Command(_INTERRUPT, _interrupt, (
    ("interrupt [--name MESH]", "KeyboardInterrupt on every rank of it that works"),
    ("    --kill RANKS", "end the processes of these ranks: 3 or 0,2 or 0-3"),
))  # fmt: skip
STACKS: Final = Command(_STACKS, _stacks, (
    ("stacks [RANKS] [--name MESH]", "where ranks are in their code, also in C that hangs"),
    ("    --native", "with the calls of C code, where py-spy is installed"),
))  # fmt: skip
