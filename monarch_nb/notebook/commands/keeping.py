"""`%mesh keep`, `attach`: meshes that outlive the kernel."""

from __future__ import annotations

import argparse
import shlex
from typing import Final

from monarch_nb.core.text.units import duration
from monarch_nb.notebook import kept_meshes, options
from monarch_nb.notebook.cells import resuming
from monarch_nb.notebook.commands.command import Command, say
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.options import Parser
from monarch_nb.notebook.session import Session

_KEEP: Final = Parser("%mesh keep", "%mesh keep 8h, or %mesh keep mesh0 8h")
_KEEP.add_argument("words", nargs="+", metavar="[MESH] TIME")

_ATTACH: Final = Parser("%mesh attach", "%mesh attach, or %mesh attach mesh0")
_ATTACH.add_argument("name", nargs="?", metavar="MESH")
_HOW: Final = _ATTACH.add_mutually_exclusive_group()
_HOW.add_argument("--fence", action="store_true")
_HOW.add_argument("--view", action="store_true")


def _keep(session: Session, chosen: argparse.Namespace) -> None:
    *names, time = chosen.words
    if len(names) > 1:
        _KEEP.error("is for one mesh and a time")
    try:
        for_s = options.time(time)
    except argparse.ArgumentTypeError as error:
        _KEEP.error(str(error))
    mesh = session.lifecycle.whole_mesh(names[0] if names else None)
    session.control.keep(mesh, for_s, session.jobs.asked(mesh.name))
    say(
        f"{mesh.name} goes on without the kernel for {duration(for_s)}. "
        f"After a restart: %mesh attach {shlex.quote(mesh.name)}"
    )


def _attach(session: Session, chosen: argparse.Namespace) -> None:
    record = kept_meshes.find(session.control.kept_meshes(), chosen.name)
    if chosen.view:
        say(resuming.look_at(session, record))
        return
    if record.is_driven() and not chosen.fence:
        name = shlex.quote(record.meshes[0].name)
        raise MagicError(
            f"{kept_meshes.names(record)} is driven by process {record.controller_pid}, another "
            f"notebook. Type: %mesh attach {name} --fence, which takes it away from that, or "
            "--view, which only looks"
        )
    for line in resuming.attach(session, record, fence=chosen.fence, use=chosen.name):
        say(line)


KEEP: Final = Command(_KEEP, _keep, (
    ("keep [MESH] 8h", "let it go on without the kernel for so long; also up ... --keep 8h"),
))  # fmt: skip
ATTACH: Final = Command(_ATTACH, _attach, (
    ("attach [MESH]", "bring a mesh back that has outlived its kernel"),
    ("    --fence", "also from a kernel that lives, which has it no more"),
    ("    --view", "look at it, whoever drives it: states, logs, curves"),
))  # fmt: skip
