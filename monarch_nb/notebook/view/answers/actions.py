"""What a browser may do: what the magics of the same names do, to meshes named as in the view.

Each runs in a thread of its own, on behalf of no cell, and returns the line that says what it did.
What cannot be done raises an error that explains itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from monarch_nb.notebook import lifecycle
from monarch_nb.notebook.debug.target import CONTROLLER, NOBODY
from monarch_nb.notebook.view.browser.protocol import Args, Do
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, plain

if TYPE_CHECKING:
    from monarch_nb.notebook.session import Session


class Action(NamedTuple):
    """`limit_s`: after which the browser is told that it goes on."""

    run: Callable[[Session, Args], str]
    limit_s: float


def action_of(do: Do) -> Action:
    """How this is done."""
    return ACTIONS[do.what]


def late(do: Do) -> str:
    """What is said of an action that takes very long."""
    limit_s = action_of(do).limit_s
    return f"{do.what} has not ended within {limit_s:g} s and goes on; see %mesh status"


def perform(session: Session, do: Do) -> dict[str, str]:
    """Do it; what a browser is told."""
    run = action_of(do).run
    said = session.runtime.beside_cells(lambda: run(session, do.args))
    return {"said": plain(said)}


def _interrupt(session: Session, args: Args) -> str:
    return lifecycle.interrupt(session, _mesh(session, args), args["ranks"])


def _restart(session: Session, args: Args) -> str:
    return lifecycle.restart(session, _mesh(session, args), args["ranks"] or ())


def _heal(session: Session, args: Args) -> str:
    return lifecycle.heal(session, _mesh(session, args))


def _kill(session: Session, args: Args) -> str:
    return lifecycle.kill(session, _mesh(session, args), args["ranks"] or ())


def _up(session: Session, args: Args) -> str:
    sizes = args["sizes"]
    if (ranks := math.prod(sizes.values())) > lifecycle.MAX_RANKS:
        raise ValueError(f"{lifecycle.MAX_RANKS} ranks at most are started, not {ranks}")
    return lifecycle.up(session, sizes, args["name"] or None, args["device"])


def _down(session: Session, args: Args) -> str:
    return lifecycle.down(session, [_mesh(session, args)])


def _use(session: Session, args: Args) -> str:
    return lifecycle.use(session, args["mesh"], _mesh(session, args))


def _debugger(session: Session, args: Args) -> str:
    """Whom the visual debugger is for."""
    fixed = {"controller": CONTROLLER, "off": NOBODY}
    if (choice := fixed.get(args["whom"])) is None:
        if args["mesh"] is None:
            raise ValueError("ranks of which mesh?")
        choice = session.debugging.ranks(_mesh(session, args), args["ranks"])
    return session.debugging.choose(choice)


def _mesh(session: Session, args: Args) -> Any:
    """The mesh that the view shows under that name."""
    mesh = session.runtime.find(args["mesh"])
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
