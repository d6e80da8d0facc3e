"""`%mesh list`, `use`, `show`, `status`: the meshes there are."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from IPython.display import display, publish_display_data

from monarch_nb.core.shape import selection
from monarch_nb.core.text.units import duration
from monarch_nb.errors import LaunchError
from monarch_nb.notebook import kept_meshes
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.display.display import StatusView
from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

if TYPE_CHECKING:
    from monarch_nb.control.api import KeptRecord

HELP_HINT: Final = "%mesh? shows all commands; %%mesh runs a cell on the ranks."

_LIST: Final = Parser("%mesh list", "%mesh list")

_USE: Final = Parser("%mesh use", "%mesh use mesh0")
_USE.add_argument("name", metavar="MESH")

_SHOW: Final = Parser("%mesh show", "%mesh show, or %mesh show mesh0 gpus=0:2")
_SHOW.add_argument("shown", nargs="*", metavar="MESH|RANKS")
_SHOW.add_argument("--widget", action="store_true")

_STATUS: Final = Parser("%mesh status", "%mesh status, or %mesh status mesh0")
_STATUS.add_argument("name", nargs="?", metavar="MESH")


def _list(session: Session, _: argparse.Namespace) -> None:
    meshes = session.meshes
    found, others = meshes.everything(), session.control.kept_meshes()
    if not (found or others):
        say(NO_MESH)
    for name, mesh in found.items():
        mark = "*" if name == meshes.current else " "
        for_s = session.control.kept_for(mesh)
        lasts = "" if for_s is None else f", kept for {duration(for_s)} without the kernel"
        say(f"{mark} {name}: {mesh_text(mesh)}{lasts}")
    for record in others:
        say(f"  {kept_meshes.words(record)}")
        if not record.is_driven():
            say(f"    {_doing(session, record)}")


def _doing(session: Session, record: KeptRecord) -> str:
    try:
        return kept_meshes.doing(session.control.left(record))
    except LaunchError as error:
        return f"what its ranks do is not known: {error}"


def _use(session: Session, chosen: argparse.Namespace) -> None:
    say(session.lifecycle.use(chosen.name))


def _show(session: Session, chosen: argparse.Namespace) -> None:
    words = list(chosen.shown)
    name = words.pop(0).removeprefix("@") if words and _is_name(words[0]) else None
    parts = selection.parts(session.meshes.to_look_at(name), words)
    data, metadata = session.showing.bundle(*parts, widget=chosen.widget)
    publish_display_data(data, metadata)


def _is_name(word: str) -> bool:
    return word != "all" and "=" not in word and (word[0].isalpha() or word[0] in "@_")


def _status(session: Session, chosen: argparse.Namespace) -> None:
    client = session.link.attach()
    found = client.snapshot() if client else None
    meshes = found.meshes if found else ()
    if chosen.name is not None:
        name = session.meshes.to_look_at(chosen.name).name
        meshes = tuple(mesh for mesh in meshes if mesh.name == name)
    if found and meshes:
        display(StatusView(meshes, found.at, session.meshes.current))
    else:
        say(f"{NO_MESH}\n{HELP_HINT}")


LIST: Final = Command(_LIST, _list, (("list", "the meshes that are up, and those that are kept"),))
USE: Final = Command(_USE, _use, (("use MESH", "make a mesh the current one"),))
SHOW: Final = Command(_SHOW, _show, (
    ("show [MESH] [RANKS]", "a picture that follows every rank; also MESH as the last line"),
    ("    --widget", "live in VS Code and Colab too, with anywidget installed"),
))  # fmt: skip
STATUS: Final = Command(_STATUS, _status, (
    ("status [MESH]", "what every rank is doing; also %mesh alone"),
))  # fmt: skip
