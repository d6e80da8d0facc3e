"""`%mesh interrupt`, `stacks`, `collectives`, `regroup`: ranks that work too long, or hang."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from monarch_nb.core.errors.folding import fold_outputs, rank_list, rank_words
from monarch_nb.core.hangs.collectives import NotRegroupedError
from monarch_nb.core.shape.selection import check_ranks
from monarch_nb.core.text.units import are
from monarch_nb.notebook import hangs, options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import Xray

_INTERRUPT: Final = Parser("%mesh interrupt", "%mesh interrupt, or %mesh interrupt --kill 3")
_INTERRUPT.add_argument("--kill", type=options.ranks, metavar="RANKS")
_INTERRUPT.add_argument("--name")

_STACKS: Final = Parser("%mesh stacks", "%mesh stacks, or %mesh stacks 3")
_STACKS.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_STACKS.add_argument("--native", action="store_true")
_STACKS.add_argument("--name")

LAST: Final = 5

_COLLECTIVES: Final = Parser("%mesh collectives", "%mesh collectives, or %mesh collectives 0-3")
_COLLECTIVES.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_COLLECTIVES.add_argument("--last", type=options.count, default=LAST, metavar="N")
_COLLECTIVES.add_argument("--name")

_REGROUP: Final = Parser("%mesh regroup", "%mesh regroup")
_REGROUP.add_argument("--name")


def _interrupt(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    if chosen.kill is not None:
        say(session.lifecycle.kill(mesh, chosen.kill))
    else:
        say(session.lifecycle.interrupt(mesh))


def _stacks(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.to_look_at(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    root, whys = session.lifecycle.stacks(mesh, ranks, native=chosen.native)
    if root.ranks:
        taken = time.strftime("taken %H:%M:%S")
        session.cells.here().output.show(hangs.tree_content(session.shell, root, taken))
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


def _collectives(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.to_look_at(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    check_ranks(mesh, ranks)
    seen = _xray(session).examine(mesh, ranks)
    if seen:
        say(hangs.report(session.shell, seen, chosen.last))
    if silent := sorted(set(ranks).difference(seen)):
        say(f"{rank_words(silent)}: no answer; %mesh status shows why")


def _regroup(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.control.whole(session.meshes.pick(chosen.name))
    if lost := session.control.lost(mesh):
        raise MagicError(f"{rank_words(lost)} of {mesh.name} {are(lost)} lost. Type: %mesh heal")
    xray = _xray(session)
    if busy := xray.at_work(mesh):
        raise MagicError(
            f"{rank_words(busy)} {are(busy)} still at work. %mesh interrupt stops that; "
            f"%mesh restart {rank_list(busy)} if nothing does. Then type %mesh regroup"
        )
    try:
        say(hangs.regrouped(mesh.name, xray.regroup(mesh)))
    except NotRegroupedError as error:
        restart = f"%mesh restart {rank_list(error.ranks)}"
        raise MagicError(f"{mesh.name}: {error}. Type: {restart}, then %mesh regroup") from None


def _xray(session: Session) -> Xray:
    found = session.control.xray()
    assert found is not None, "a mesh is up"
    return found


COLLECTIVES: Final = Command(_COLLECTIVES, _collectives, (
    ("collectives [RANKS]", "what ranks wait in, and the first at which they disagree"),
    ("    --last N", "so many of each rank (5)"),
))  # fmt: skip
REGROUP: Final = Command(_REGROUP, _regroup, (
    ("regroup [--name MESH]", "out of process groups that hang, into a new one"),
))  # fmt: skip
