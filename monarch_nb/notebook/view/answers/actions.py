"""What a browser may do: what the magics of the same names do, to meshes named as in the view.

Each runs in a thread of its own, on behalf of no cell, and returns the line that says what it did.
What cannot be done raises an error that explains itself. Hosts may come after hours: what asks an
engine for some is answered at once, and the panel shows how far they are, or why none come.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from monarch_nb.notebook import options
from monarch_nb.notebook.client_link import ClientLink
from monarch_nb.notebook.debug.target import CONTROLLER, NOBODY, Debugging
from monarch_nb.notebook.jobs import where
from monarch_nb.notebook.jobs.running import Cancelled
from monarch_nb.notebook.jobs.scaling import Scaling
from monarch_nb.notebook.jobs.steps import Steps
from monarch_nb.notebook.lifecycle import Lifecycle
from monarch_nb.notebook.view.answers.pending_requests import EXPECTED, Work, sentence
from monarch_nb.notebook.view.browser.protocol import Args, Do
from monarch_nb.notebook.view.feed.encoding import MAX_WHAT, plain

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, ProcMesh


MAX_COMING: Final = 8
"""So many meshes wait for hosts at most, as far as buttons have asked for them."""


class Parts(NamedTuple):
    """What actions and debugger prompts work on."""

    control: Control
    link: ClientLink
    lifecycle: Lifecycle
    debugging: Debugging
    scaling: Scaling


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
    chosen = options.parse(where.UP, args["line"])
    asked, lifecycle = where.asked(chosen), parts.lifecycle
    if asked.hosts is None:
        return lifecycle.up(asked, chosen.name, chosen.there)
    steps = Steps()
    return _ask_engine(
        parts,
        asked.hosts.engine,
        lambda: lifecycle.up(asked, chosen.name, chosen.there, steps),
    )


def _scale(parts: Parts, args: Args) -> str:
    mesh, hosts = _mesh(parts, args), args["hosts"]
    parts.lifecycle.jobs.job(mesh.name)
    return _ask_engine(parts, mesh.name, lambda: parts.scaling.scale(mesh, hosts, (), Steps()))


def _ask_engine(parts: Parts, whom: str, ask: Callable[[], str]) -> str:
    # the thread is a daemon: the kernel's end does not wait for a queue
    jobs = parts.lifecycle.jobs
    if jobs.coming() >= MAX_COMING:
        raise ValueError(f"{MAX_COMING} meshes wait for hosts already. Cancel one, or wait")

    def run() -> None:
        try:
            parts.control.beside_cells(ask)
        except Cancelled:
            return  # by who looks at the panel
        except BaseException as error:
            if not isinstance(error, EXPECTED):
                logging.getLogger("monarch_nb").warning("asking for hosts", exc_info=True)
            jobs.tell_failure(whom, sentence(error))

    threading.Thread(target=run, name="monarch-live-hosts", daemon=True).start()
    return f"{whom} is asked for hosts"


def _cancel(parts: Parts, args: Args) -> str:
    return parts.lifecycle.jobs.cancel(args["job"])


def _settle(parts: Parts, args: Args) -> str:
    return parts.lifecycle.jobs.settle(args["job"])


def _down(parts: Parts, args: Args) -> str:
    return parts.lifecycle.down([_mesh(parts, args)])


def _use(parts: Parts, args: Args) -> str:
    return parts.lifecycle.use(args["mesh"], _mesh(parts, args))


def _dismiss(parts: Parts, args: Args) -> str:
    client = parts.control.running_client()
    count = 0 if client is None else client.failures.dismiss(args["mesh"], args["past"])
    return f"{count} dismissed"


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
    "scale": Action(_scale, 10.0),
    "cancel": Action(_cancel, 60.0),
    "settle": Action(_settle, 10.0),
    "down": Action(_down, 30.0),
    "use": Action(_use, 5.0),
    "dismiss": Action(_dismiss, 5.0),
    "debugger": Action(_debugger, 10.0),
}
