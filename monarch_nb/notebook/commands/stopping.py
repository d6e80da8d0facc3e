"""`%mesh interrupt`: stop what ranks do, or end them."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
from typing import Any, Final

from monarch_nb.core.folding import rank_runs, rank_words
from monarch_nb.notebook import options
from monarch_nb.notebook.command import Command, say
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.problems import MagicError
from monarch_nb.notebook.session import Session

_INTERRUPT: Final = Parser("%mesh interrupt", "%mesh interrupt, or %mesh interrupt --kill 3")
_INTERRUPT.add_argument("--kill", type=options.ranks, metavar="RANKS")
_INTERRUPT.add_argument("--name", type=options.name)


def _interrupt(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    client = session.attach()
    if client is None:
        raise MagicError(NO_MESH)
    if chosen.kill is None:
        client.interrupt(None)
        session.stragglers.interrupt()
        say(f"{mesh.name}: interrupted")
    else:
        _kill(client, mesh, chosen.kill)


def _kill(client: Any, mesh: Any, ranks: tuple[int, ...]) -> None:
    missing = sorted(set(ranks) - set(mesh.ranks))
    if missing:
        raise MagicError(
            f"{mesh.name} has no {rank_words(missing)}; its ranks are {rank_runs(mesh.ranks)}"
        )
    found = [one for one in client.snapshot().meshes if one.name == mesh.name]
    for rank in itertools.chain.from_iterable(one.ranks for one in found):
        if rank.rank in ranks and rank.pid:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(rank.pid, signal.SIGKILL)
    say(f"{mesh.name}: {rank_words(ranks)} killed. %mesh heal starts them again")


INTERRUPT: Final = Command(_INTERRUPT, _interrupt, (
    ("interrupt [--name MESH]", "KeyboardInterrupt on every rank that works"),
    ("    --kill RANKS", "end the processes of these ranks: 3 or 0,2 or 0-3"),
))  # fmt: skip
