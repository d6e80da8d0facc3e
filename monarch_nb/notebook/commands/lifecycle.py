"""`%mesh up`, `down`, `heal` and `restart`: meshes come and go."""

from __future__ import annotations

import argparse
import math
import shlex
import time
from collections.abc import Sequence
from typing import Any, Final

from monarch_nb.core.folding import rank_words
from monarch_nb.notebook import options
from monarch_nb.notebook.command import Command, say
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.problems import MagicError
from monarch_nb.notebook.selection import check_ranks
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.words import duration, mesh_text

MAX_RANKS: Final = 4_096  # on one machine; a slip of the finger must not fill its memory
STOP_S: Final = 10.0
POLL_S: Final = 0.005

_UP: Final = Parser("%mesh up", "%mesh up --gpus 4")
_UP.add_argument("--gpus", type=options.count)
_UP.add_argument("--name", type=options.new_name)
_UP.add_argument("axes", nargs="*", type=options.axis, metavar="axis=size")

_DOWN: Final = Parser("%mesh down", "%mesh down, or %mesh down mesh0, or %mesh down --all")
_DOWN.add_argument("name", nargs="?", metavar="MESH")
_DOWN.add_argument("--all", action="store_true")

_HEAL: Final = Parser("%mesh heal", "%mesh heal, or %mesh heal --shrink")
_HEAL.add_argument("name", nargs="?", metavar="MESH")
_HEAL.add_argument("--shrink", action="store_true")

_RESTART: Final = Parser("%mesh restart", "%mesh restart, or %mesh restart 3")
_RESTART.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_RESTART.add_argument("--name")


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
    if (ranks := math.prod(found.values())) > MAX_RANKS:
        _UP.error(f"starts {MAX_RANKS} ranks at most, not {ranks}")
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
    doomed = _all(session) if chosen.all else [_one(session, chosen.name)]
    if not doomed:
        raise MagicError(NO_MESH)
    stops = [mesh.stop() for mesh in doomed]
    for stop in stops:
        stop.get()
    names = list(dict.fromkeys(mesh.name for mesh in doomed))
    for name in names:
        session.meshes.forget(name)
    say(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} down")
    if session.auto.line is not None and not session.meshes.everything():
        say("cells still go to the mesh; %mesh auto off keeps them here")


def _all(session: Session) -> list[Any]:
    """Every mesh once, however many slices of it have names."""
    found = session.meshes.everything().values()
    return [session.runtime.whole(mesh) for mesh in {mesh.name: mesh for mesh in found}.values()]


def _one(session: Session, name: str | None) -> Any:
    """The mesh of that name, or the current one; not a slice, of which others may be at work."""
    mesh = session.meshes.pick(name)
    whole = session.runtime.whole(mesh)
    if len(mesh) < len(whole) and name != whole.name:
        raise MagicError(
            f"{name or session.meshes.current} is a slice of {whole.name}, which has "
            f"{mesh_text(whole)}. Type: %mesh down {shlex.quote(whole.name)}"
        )
    return whole


def _heal(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.runtime.whole(session.meshes.pick(chosen.name))
    if chosen.shrink and session.runtime.lost(mesh):  # else handles would end for nothing
        smaller = mesh.heal(shrink=True)
        session.meshes.keep(mesh.name, smaller)
        say(f"{mesh.name} goes on with {mesh_text(smaller)}")
    else:
        say(f"{mesh.name} is whole again: {mesh_text(mesh.heal())}")


def _restart(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    check_ranks(mesh, ranks)
    mesh = session.runtime.whole(mesh)
    lost = session.runtime.lost(mesh)
    mesh.heal()  # the lost come back too; and where none can, none shall be ended
    _end(session, mesh, sorted(set(ranks).difference(lost)))
    mesh.heal()
    started = sorted({*ranks, *lost})
    empty = "an empty namespace" if len(started) == 1 else "empty namespaces"
    say(f"{mesh.name}: {rank_words(started)} started again, with {empty}")


def _end(session: Session, mesh: Any, ranks: Sequence[int]) -> None:
    """Kill them, and wait until they are gone."""
    session.kill(mesh, ranks)
    deadline = time.monotonic() + STOP_S
    while not set(ranks).issubset(session.runtime.lost(mesh)):
        if time.monotonic() > deadline:
            raise MagicError(f"{mesh.name}: {rank_words(ranks)} did not end; see %mesh status")
        time.sleep(POLL_S)


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
