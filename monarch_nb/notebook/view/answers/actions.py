"""What a browser may do: what the magics of the same names do, to meshes named as in the view.

Each runs in a thread of its own, on behalf of no cell, and returns the line that says what it did.
What cannot be done raises an error that explains itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.debug.target import CONTROLLER, NOBODY, Debugging
from monarch_nb.notebook.lifecycle import MAX_RANKS, Lifecycle
from monarch_nb.notebook.meshes import Asked
from monarch_nb.notebook.view.answers.pending_requests import Work
from monarch_nb.notebook.view.browser.protocol import Args, Do
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, plain

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, ProcMesh


class Parts(NamedTuple):
    """What actions and debugger prompts work on."""

    control: Control
    link: ClientLink
    lifecycle: Lifecycle
    debugging: Debugging


class Action(NamedTuple):
    """`limit_s`: after which the browser is told that it goes on."""

    run: Callable[[Parts, Args], str]
    limit_s: float


def work_of(parts: Parts, do: Do) -> Work:
    """Return what it takes to do this."""
    limit_s = ACTIONS[do.what].limit_s
    late = f"{do.what} has not ended within {limit_s:g} s and goes on; see %mesh status"
    return Work(lambda: perform(parts, do), limit_s, late)


def perform(parts: Parts, do: Do) -> dict[str, str]:
    """Do it; what a browser is told."""
    run = ACTIONS[do.what].run
    said = parts.control.beside_cells(lambda: run(parts, do.args))
    return {"said": plain(said)}


def _interrupt(parts: Parts, args: Args) -> str:
    return parts.lifecycle.interrupt(_mesh(parts, args), args["ranks"] or ())


def _restart(parts: Parts, args: Args) -> str:
    return parts.lifecycle.restart(_mesh(parts, args), args["ranks"] or ())


def _heal(parts: Parts, args: Args) -> str:
    return parts.lifecycle.heal(_mesh(parts, args))


def _kill(parts: Parts, args: Args) -> str:
    return parts.lifecycle.kill(_mesh(parts, args), args["ranks"] or ())


def _up(parts: Parts, args: Args) -> str:
    sizes = args["sizes"]
    if (ranks := math.prod(sizes.values())) > MAX_RANKS:
        raise ValueError(f"{MAX_RANKS} ranks at most are started, not {ranks}")
    asked = Asked(tuple(sizes.items()), args["device"])
    return parts.lifecycle.up(asked, args["name"] or None, "new")


def _down(parts: Parts, args: Args) -> str:
    return parts.lifecycle.down([_mesh(parts, args)])


def _use(parts: Parts, args: Args) -> str:
    return parts.lifecycle.use(args["mesh"], _mesh(parts, args))


def _debugger(parts: Parts, args: Args) -> str:
    fixed = {"controller": CONTROLLER, "off": NOBODY}
    if (choice := fixed.get(args["whom"])) is None:
        if args["mesh"] is None:
            raise ValueError("ranks of which mesh?")
        choice = parts.debugging.ranks(_mesh(parts, args), args["ranks"])
    return parts.debugging.choose(choice)


def _mesh(parts: Parts, args: Args) -> ProcMesh:
    mesh = parts.control.find(args["mesh"])
    if mesh is None:
        raise ValueError(f"there is no mesh {plain(args['mesh'], MAX_WHAT)!r} any more")
    return mesh


ACTIONS: Final = {
    "interrupt": Action(_interrupt, 10.0),
    "restart": Action(_restart, 60.0),
    "heal": Action(_heal, 60.0),
    "kill": Action(_kill, 10.0),
    "up": Action(_up, 150.0),
    "down": Action(_down, 30.0),
    "use": Action(_use, 5.0),
    "debugger": Action(_debugger, 10.0),
}
