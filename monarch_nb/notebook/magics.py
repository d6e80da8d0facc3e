"""`%mesh` and `%%mesh`.

Rule of the file: a magic is a few words that call something else; what it prints is one line.
Whatever goes wrong below and is a `MeshError` or a wrong value is shown as its text, without a
traceback of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from monarch_nb.core.folding import rank_runs, rank_words
from monarch_nb.errors import MeshError
from monarch_nb.notebook import cells, options
from monarch_nb.notebook.display import StatusView
from monarch_nb.notebook.meshes import NO_MESH
from monarch_nb.notebook.problems import CellError, MagicError
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.words import count, duration, mesh_text

HELP_HINT = "%mesh? shows all commands; %%mesh runs a cell on the ranks."
SLOW_S = 3.0
STOP_S = 10.0
"""Coming up is told once after this long, then at five times the interval."""


@magics_class
class MeshMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell)
        self._session = session
        self._commands = {
            "up": self._up,
            "down": self._down,
            "list": self._list,
            "use": self._use,
            "status": self._status,
            "heal": self._heal,
            "interrupt": self._interrupt,
        }

    @no_var_expand
    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> None:
        """Drive a mesh of ranks from the notebook.

        %%mesh [SELECTION] [--name MESH]      run the cell on ranks, all of them by default
            %%mesh                            every rank of the current mesh
            %%mesh gpus=0:2                   the first two along the axis gpus
            %%mesh hosts=0 gpus=::2           every other one of the first host
            %%mesh 0,2    or  0-3  or  all    by rank
            %%mesh --name mesh1               another mesh than the current one

        %mesh up --gpus 4                     start four ranks on this machine, as mesh0
            --name MESH                       choose the name
            replicas=2 gpus=4                 any axes, the first one outermost
        %mesh down [MESH] [--all]             stop a mesh, or all
        %mesh list                            the meshes that are up
        %mesh use MESH                        make a mesh the current one
        %mesh status [MESH]                   what every rank is doing; also %mesh alone
        %mesh heal [MESH] [--shrink]          start lost ranks again; --shrink: go on without them
        %mesh interrupt [--name MESH]         KeyboardInterrupt on every rank that works
            --kill RANKS                      end the processes of these ranks: 3 or 0,2 or 0-3

        On the ranks, cells share one namespace each, with rank, size, coords and device by name.
        """
        with _as_one_line():
            if cell is not None:
                cells.run(self._session, line, cell)
                return
            command, chosen = options.parse_line(line)
            self._commands[command](chosen)

    # ---------------------------------------------------------------------- coming and going

    def _up(self, chosen: argparse.Namespace) -> None:
        sizes = options.sizes(chosen)
        meshes = self._session.meshes
        name = meshes.new_name(chosen.name)
        started = time.monotonic()
        mesh = meshes.spawn(sizes, name)
        self._session.attach()
        self._wait_until_up(mesh, name)
        took = duration(time.monotonic() - started)
        has_variable = meshes.keep(name, mesh)
        named = f"; the variable {name} is the mesh" if has_variable else ""
        _say(f"{name} is up: {mesh_text(mesh)} in {took}. %%mesh runs a cell on them{named}.")

    def _wait_until_up(self, mesh: Any, name: str) -> None:
        wait_s = SLOW_S
        started = time.monotonic()
        try:
            while True:
                try:
                    mesh.initialized.get(timeout=wait_s)
                except TimeoutError:
                    took = duration(time.monotonic() - started)
                    _say(f"{name}: waiting for {count(len(mesh), 'rank')} to start, {took}")
                    wait_s = 5 * SLOW_S
                else:
                    return
        except BaseException:
            mesh.stop().get(timeout=STOP_S)
            raise

    def _down(self, chosen: argparse.Namespace) -> None:
        meshes = self._session.meshes
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
        _say(f"{', '.join(doomed)} {'is' if len(doomed) == 1 else 'are'} down")

    def _heal(self, chosen: argparse.Namespace) -> None:
        meshes = self._session.meshes
        mesh = meshes.pick(chosen.name)
        healed = mesh.heal(shrink=chosen.shrink)
        meshes.keep(mesh.name, healed)
        _say(f"{mesh.name} is whole again: {mesh_text(healed)}")

    # ------------------------------------------------------------------------------- looking

    def _list(self, _: argparse.Namespace) -> None:
        meshes = self._session.meshes
        found = meshes.everything()
        if not found:
            _say(NO_MESH)
        for name, mesh in found.items():
            mark = "*" if name == meshes.current else " "
            _say(f"{mark} {name}: {mesh_text(mesh)}")

    def _use(self, chosen: argparse.Namespace) -> None:
        self._session.meshes.use(chosen.name)
        _say(f"%%mesh now means {chosen.name}")

    def _status(self, chosen: argparse.Namespace) -> None:
        client = self._session.attach()
        meshes = client.snapshot().meshes if client else ()
        if chosen.name is not None:
            name = self._session.meshes.pick(chosen.name).name
            meshes = [mesh for mesh in meshes if mesh.name == name]
        if meshes:
            display(StatusView(meshes, self._session.meshes.current))
        else:
            _say(f"{NO_MESH}\n{HELP_HINT}")

    # ----------------------------------------------------------------------------- stopping

    def _interrupt(self, chosen: argparse.Namespace) -> None:
        mesh = self._session.meshes.pick(chosen.name)
        client = self._session.attach()
        if client is None:
            raise MagicError(NO_MESH)
        if chosen.kill is None:
            client.interrupt(None)
            self._session.stragglers.interrupt()
            _say(f"{mesh.name}: interrupted")
        else:
            self._kill(client, mesh, chosen.kill)

    def _kill(self, client: Any, mesh: Any, ranks: tuple[int, ...]) -> None:
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
        _say(f"{mesh.name}: {rank_words(ranks)} killed. %mesh heal starts them again")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  below the cell of the magic


@contextlib.contextmanager
def _as_one_line() -> Iterator[None]:
    """Errors of the mesh are their own explanation; those of cells render themselves."""
    try:
        yield
    except (CellError, MagicError):
        raise
    except (MeshError, ValueError, RuntimeError) as error:
        raise MagicError(str(error)) from None
