"""`%mesh list`, `use` and `status`: what is up, and how it is."""

from __future__ import annotations

import argparse
from typing import Final

from IPython.display import display

from monarch_nb.notebook import lifecycle
from monarch_nb.notebook.command import Command, say
from monarch_nb.notebook.display import StatusView
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.words import mesh_text

HELP_HINT: Final = "%mesh? shows all commands; %%mesh runs a cell on the ranks."

_LIST: Final = Parser("%mesh list", "%mesh list")

_USE: Final = Parser("%mesh use", "%mesh use mesh0")
_USE.add_argument("name", metavar="MESH")

_STATUS: Final = Parser("%mesh status", "%mesh status, or %mesh status mesh0")
_STATUS.add_argument("name", nargs="?", metavar="MESH")


def _list(session: Session, _: argparse.Namespace) -> None:
    meshes = session.meshes
    found = meshes.everything()
    if not found:
        say(NO_MESH)
    for name, mesh in found.items():
        mark = "*" if name == meshes.current else " "
        say(f"{mark} {name}: {mesh_text(mesh)}")


def _use(session: Session, chosen: argparse.Namespace) -> None:
    say(lifecycle.use(session, chosen.name))


def _status(session: Session, chosen: argparse.Namespace) -> None:
    client = session.attach()
    found = client.snapshot() if client else None
    meshes = found.meshes if found else ()
    if chosen.name is not None:
        name = session.meshes.pick(chosen.name).name
        meshes = [mesh for mesh in meshes if mesh.name == name]
    if found and meshes:
        display(StatusView(meshes, found.at, session.meshes.current))
    else:
        say(f"{NO_MESH}\n{HELP_HINT}")


LIST: Final = Command(_LIST, _list, (("list", "the meshes that are up"),))
USE: Final = Command(_USE, _use, (("use MESH", "make a mesh the current one"),))
STATUS: Final = Command(_STATUS, _status, (
    ("status [MESH]", "what every rank is doing; also %mesh alone"),
))  # fmt: skip
