"""`%mesh up`, `down`, `heal`, `restart`, `list`, `use`, `show`, `status`: the meshes there are."""

from __future__ import annotations

import argparse
import math
from typing import Final

from IPython.display import display, publish_display_data

from monarch_nb.core.shape import selection
from monarch_nb.notebook import options
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.display.display import StatusView
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.lifecycle import MAX_RANKS
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_UP: Final = Parser("%mesh up", "%mesh up --gpus 4")
_UP.add_argument("--gpus", type=options.count)
_UP.add_argument("--name", type=options.new_name)
_UP.add_argument("--device", type=options.device, default="auto")
_UP.add_argument("axes", nargs="*", type=options.axis, metavar="axis=size")
_THERE: Final = _UP.add_mutually_exclusive_group()
for _choice in ("replace", "new"):
    _THERE.add_argument(f"--{_choice}", dest="there", action="store_const", const=_choice)
_UP.set_defaults(there="keep")

_DOWN: Final = Parser("%mesh down", "%mesh down, or %mesh down mesh0, or %mesh down --all")
_DOWN.add_argument("name", nargs="?", metavar="MESH")
_DOWN.add_argument("--all", action="store_true")

_HEAL: Final = Parser("%mesh heal", "%mesh heal, or %mesh heal --shrink")
_HEAL.add_argument("name", nargs="?", metavar="MESH")
_HEAL.add_argument("--shrink", action="store_true")

_RESTART: Final = Parser("%mesh restart", "%mesh restart, or %mesh restart 3")
_RESTART.add_argument("ranks", nargs="?", type=options.ranks, metavar="RANKS")
_RESTART.add_argument("--name")

LOOK_HINT: Final = (
    "{} as a cell's last line is a live view; monarch_nb.log(step, loss=loss) draws curves there."
)
HELP_HINT: Final = "%mesh? shows all commands; %%mesh runs a cell on the ranks."

_LIST: Final = Parser("%mesh list", "%mesh list")

_USE: Final = Parser("%mesh use", "%mesh use mesh0")
_USE.add_argument("name", metavar="MESH")

_SHOW: Final = Parser("%mesh show", "%mesh show, or %mesh show mesh0 gpus=0:2")
_SHOW.add_argument("shown", nargs="*", metavar="MESH|RANKS")
_SHOW.add_argument("--widget", action="store_true")

_STATUS: Final = Parser("%mesh status", "%mesh status, or %mesh status mesh0")
_STATUS.add_argument("name", nargs="?", metavar="MESH")


def sizes(chosen: argparse.Namespace) -> dict[str, int]:
    """Return the axes of `%mesh up`, in the order in which they are to be."""
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
    is_first = session.meshes.is_unused
    say(session.lifecycle.up(sizes(chosen), chosen.name, chosen.device, chosen.there))
    if is_first:
        say(LOOK_HINT.format(session.meshes.current))


def _down(session: Session, chosen: argparse.Namespace) -> None:
    if chosen.all:
        say(session.lifecycle.down(session.lifecycle.every_mesh()))
    else:
        say(session.lifecycle.down([session.lifecycle.whole_mesh(chosen.name)]))


def _heal(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.control.whole(session.meshes.pick(chosen.name))
    say(session.lifecycle.heal(mesh, shrink=chosen.shrink))


def _restart(session: Session, chosen: argparse.Namespace) -> None:
    mesh = session.meshes.pick(chosen.name)
    ranks = tuple(mesh.ranks) if chosen.ranks is None else chosen.ranks
    say(session.lifecycle.restart(mesh, ranks))


UP: Final = Command(_UP, _up, (
    ("up --gpus 4", "start four ranks on this machine, as mesh0; also up 4"),
    ("    --name MESH", "choose the name"),
    ("    --device cpu", "ranks see no GPU; cuda: each has one of its own"),
    ("    replicas=2 gpus=4", "any axes, the first one outermost"),
    ("    --replace", "end the mesh that is up, and start this one in its place"),
    ("    --new", "start this one beside the mesh that is up"),
))  # fmt: skip
DOWN: Final = Command(_DOWN, _down, (("down [MESH] [--all]", "stop a mesh, or all"),))
HEAL: Final = Command(_HEAL, _heal, (
    ("heal [MESH] [--shrink]", "start lost ranks again; --shrink: go on without them"),
))  # fmt: skip
RESTART: Final = Command(_RESTART, _restart, (
    ("restart [RANKS] [--name MESH]", "end these ranks, or all, and start them again"),
))  # fmt: skip


def _list(session: Session, _: argparse.Namespace) -> None:
    meshes = session.meshes
    found = meshes.everything()
    if not found:
        say(NO_MESH)
    for name, mesh in found.items():
        mark = "*" if name == meshes.current else " "
        say(f"{mark} {name}: {mesh_text(mesh)}")


def _use(session: Session, chosen: argparse.Namespace) -> None:
    say(session.lifecycle.use(chosen.name))


def _show(session: Session, chosen: argparse.Namespace) -> None:
    words = list(chosen.shown)
    name = words.pop(0).removeprefix("@") if words and _is_name(words[0]) else None
    parts = selection.parts(session.meshes.pick(name), words)
    data, metadata = session.showing.bundle(*parts, widget=chosen.widget)
    publish_display_data(data, metadata)


def _is_name(word: str) -> bool:
    return word != "all" and "=" not in word and (word[0].isalpha() or word[0] in "@_")


def _status(session: Session, chosen: argparse.Namespace) -> None:
    client = session.link.attach()
    found = client.snapshot() if client else None
    meshes = found.meshes if found else ()
    if chosen.name is not None:
        name = session.meshes.pick(chosen.name).name
        meshes = tuple(mesh for mesh in meshes if mesh.name == name)
    if found and meshes:
        display(StatusView(meshes, found.at, session.meshes.current))
    else:
        say(f"{NO_MESH}\n{HELP_HINT}")


LIST: Final = Command(_LIST, _list, (("list", "the meshes that are up"),))
USE: Final = Command(_USE, _use, (("use MESH", "make a mesh the current one"),))
SHOW: Final = Command(_SHOW, _show, (
    ("show [MESH] [RANKS]", "a picture that follows every rank; also MESH as the last line"),
    ("    --widget", "live in VS Code and Colab too, with anywidget installed"),
))  # fmt: skip
STATUS: Final = Command(_STATUS, _status, (
    ("status [MESH]", "what every rank is doing; also %mesh alone"),
))  # fmt: skip
