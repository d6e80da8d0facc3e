"""`%mesh up`, `down`, `heal` and `restart`: meshes come and go."""

from __future__ import annotations

import argparse
import time
from typing import Final

from monarch_nb.core.folding import rank_words
from monarch_nb.notebook import options
from monarch_nb.notebook.command import Command, say
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.problems import MagicError
from monarch_nb.notebook.selection import check_ranks
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.words import duration, mesh_text

STOP_S: Final = 10.0
POLL_S: Final = 0.005

_UP: Final = Parser("%mesh up", "%mesh up --gpus 4")
_UP.add_argument("--gpus", type=options.count)
_UP.add_argument("--name", type=options.name)
_UP.add_argument("axes", nargs="*", type=options.axis, metavar="axis=size")

_DOWN: Final = Parser("%mesh down", "%mesh down, or %mesh down mesh0, or %mesh down --all")
_DOWN.add_argument("name", nargs="?", type=options.name)
_DOWN.add_argument("--all", action="store_true")

_HEAL: Final = Parser("%mesh heal", "%mesh heal, or %mesh heal --shrink")
_HEAL.add_argument("name", nargs="?", type=options.name)
_HEAL.add_argument("--shrink", action="store_true")

_RESTART: Final = Parser("%mesh restart", "%mesh restart, or %mesh restart 3")
_RESTART.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_RESTART.add_argument("--name", type=options.name)


def sizes(chosen: argparse.Namespace) -> dict[str, int]:
    """The axes of `%mesh up`, in the order in which they are to be."""
    found: dict[str, int] = {}
    given: list[tuple[str, int]] = list(chosen.axes)
    if chosen.gpus is not None:
        given.append(("gpus", chosen.gpus))
    for label, size in given:
        if label in found:
            _UP.error(f"{label} is given twice")
        found[label] = size
    if not found:
        _UP.error("needs to know how many ranks")
    return found


def _up(session: Session, chosen: argparse.Namespace) -> None:
    wanted = sizes(chosen)
    meshes = session.meshes
    name = meshes.new_name(chosen.name)
    started = time.monotonic()
    mesh = meshes.spawn(wanted, name)
    session.attach()
    try:
        mesh.initialized.get()
    except BaseException:
        mesh.stop().get(timeout=STOP_S)
        raise
    took = duration(time.monotonic() - started)
    has_variable = meshes.keep(name, mesh)
    named = f"; the variable {name} is the mesh" if has_variable else ""
    say(f"{name} is up: {mesh_text(mesh)} in {took}. %%mesh runs a cell on them{named}.")


def _down(session: Session, chosen: argparse.Namespace) -> None:
    meshes = session.meshes
    if chosen.all:
        doomed = meshes.everything()
    else:
        mesh = meshes.pick(chosen.name)
        doomed = {mesh.name: mesh}
    if not doomed:
        raise MagicError(NO_MESH)
    stops = [mesh.stop() for mesh in doomed.values()]
    for stop in stops:
        stop.get()
    for name in doomed:
        meshes.forget(name)
    say(f"{', '.join(doomed)} {'is' if len(doomed) == 1 else 'are'} down")


def _heal(session: Session, chosen: argparse.Namespace) -> None:
    meshes = session.meshes
    mesh = meshes.pick(chosen.name)
    healed = mesh.heal(shrink=chosen.shrink)
    meshes.keep(mesh.name, healed)
    say(f"{mesh.name} is whole again: {mesh_text(healed)}")


def _restart(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    check_ranks(mesh, ranks)
    session.runtime.kill(mesh, ranks)
    deadline = time.monotonic() + STOP_S
    while not set(ranks).issubset(session.runtime.lost(mesh)):
        if time.monotonic() > deadline:
            raise MagicError(f"{mesh.name}: {rank_words(ranks)} did not end; see %mesh status")
        time.sleep(POLL_S)
    session.meshes.keep(mesh.name, mesh.heal())
    empty = "an empty namespace" if len(ranks) == 1 else "empty namespaces"
    say(f"{mesh.name}: {rank_words(ranks)} started again, with {empty}")


UP: Final = Command(_UP, _up, (
    ("up --gpus 4", "start four ranks on this machine, as mesh0"),
    ("    --name MESH", "choose the name"),
    ("    replicas=2 gpus=4", "any axes, the first one outermost"),
))  # fmt: skip
DOWN: Final = Command(_DOWN, _down, (("down [MESH] [--all]", "stop a mesh, or all"),))
HEAL: Final = Command(_HEAL, _heal, (
    ("heal [MESH] [--shrink]", "start lost ranks again; --shrink: go on without them"),
))  # fmt: skip
RESTART: Final = Command(_RESTART, _restart, (
    ("restart [RANKS] [--name MESH]", "end these ranks, or all, and start them again"),
))  # fmt: skip
