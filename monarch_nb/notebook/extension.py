"""`%load_ext monarch_nb`, in any ipykernel and in terminal IPython: `%mesh` and `%%mesh`.

Rule of the file: whatever goes wrong below and is a `MeshError` or a wrong value is shown as its
text, without a traceback of ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand

from monarch_nb import control
from monarch_nb.control.api import Control
from monarch_nb.errors import MeshError
from monarch_nb.notebook import commands, tracebacks
from monarch_nb.notebook.cells import mesh_cell
from monarch_nb.notebook.commands import auto, debug
from monarch_nb.notebook.commands.command import say
from monarch_nb.notebook.completion import completer
from monarch_nb.notebook.display import display
from monarch_nb.notebook.errors import CellError, MagicError
from monarch_nb.notebook.session import Session, session_of

_HELP = """Drive a mesh of ranks from the notebook.

Cells
%%mesh [SELECTION] [OPTIONS]      run the cell on ranks, all of them by default
    %%mesh                        every rank of the current mesh
    %%mesh gpus=0:2               the first two along the axis gpus
    %%mesh hosts=0 gpus=::2       every other one of the first host
    %%mesh 0,2 or 0-3 or all      by rank; --targets 0,2 is the same
    %%mesh @mesh1                 another mesh than the current one; also --name mesh1
    --noblock                     return at once; -o NAME keeps the cell in a variable
    --timeout SECONDS             interrupt ranks that take longer
    --local                       run the cell in the controller too
    --layout columns              a column for each rank; also tabs, ranks, rank=0, fold
    --no-stream                   show what ranks print when all have ended
    --no-fail-fast                ranks go on waiting for one on which the cell has failed
    --progress-after SECONDS      when to say who is waited for; -1: never
    as ipyparallel has them       -t -b --block -a -o --out -e -r --group-outputs --stream
%px CODE                          a line on all ranks; %%px is another name of %%mesh

{commands}

On the ranks, cells share one namespace each, with rank, size, coords and device by name. In a
%%mesh cell Tab and Shift-Tab ask the first rank that it selects.
"""


@magics_class
class MeshMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._session = session

    @no_var_expand
    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> Any:
        return _run(self._session, line, cell)

    mesh.__doc__ = _HELP.format(commands=commands.whole_help())


@magics_class
class PxMagics(Magics):
    """The names that users of ipyparallel have in their fingers."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        super().__init__(shell)
        self._session = session

    @no_var_expand
    @line_cell_magic
    def px(self, line: str, cell: str | None = None) -> Any:
        """Run a line or a cell on the ranks: `%px CODE`; `%%px` takes what `%%mesh` takes."""
        return _run(self._session, "", line) if cell is None else _run(self._session, line, cell)

    @line_magic
    def autopx(self, _: str) -> None:
        """Turn `%mesh auto` on, or off again."""
        with _as_one_line():
            auto.toggle(self._session)


def _register_magics(shell: InteractiveShell, session: Session) -> None:
    # `%px` only where nothing else has that name
    shell.register_magics(MeshMagics(shell, session))
    debug.take_over_debug(session)
    if "px" not in shell.magics_manager.magics["line"]:
        shell.register_magics(PxMagics(shell, session))


def _unregister_magics(shell: InteractiveShell) -> None:
    for known in shell.magics_manager.magics.values():
        for name, magic in list(known.items()):
            if isinstance(getattr(magic, "__self__", None), MeshMagics | PxMagics):
                del known[name]


def _run(session: Session, line: str, cell: str | None) -> Any:
    if page := _help(line.split()[:2]):
        say(page)
        return None
    with _as_one_line():
        if cell is not None:
            return mesh_cell.run(session, line, cell)
        command, chosen = commands.parse_line(line)
        return command.run(session, chosen)


def _help(words: list[str]) -> str:
    # The page for `help`, `--help`, `up --help`; empty when nobody asks for one
    dashes = ("-h", "--help")
    if words and words[0] in ("help", *dashes):
        about = words[1:]
    elif words[1:] and words[1] in dashes:
        about = words[:1]
    else:
        return ""
    known = commands.COMMANDS.keys() & about
    return commands.help_text(known) if known else str(MeshMagics.mesh.__doc__).rstrip()


@contextlib.contextmanager
def _as_one_line() -> Iterator[None]:
    # Errors of the mesh are their own explanation; those of cells render themselves
    try:
        yield
    except (CellError, MagicError):
        raise
    except (MeshError, ValueError, RuntimeError) as error:
        raise MagicError(str(error)) from None


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add `%mesh`, `%%mesh` and the displays. Loading twice does nothing."""
    if session_of(shell) is None:
        load(shell, Control())


def load(shell: InteractiveShell, with_control: Control) -> Session:
    """Do as `load_ipython_extension` does, for a shell that has not loaded it."""
    session = Session(shell, with_control)
    session.start()
    _register_magics(shell, session)
    session.on_close(lambda: _unregister_magics(shell))
    session.on_close(display.register(shell, session.showing))
    found = completer.Help(shell, session.control, session.meshes, session.auto, session.seen)
    session.on_close(completer.install(shell, found))
    session.on_close(tracebacks.hide_our_frames(shell))
    control.name_files(lambda filename: tracebacks.name_of_cell(shell, filename))
    session.on_close(lambda: control.name_files(None))
    vars(shell)["_monarch_nb_session"] = session
    return session


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take them away again. Meshes that are up stay up."""
    session = session_of(shell)
    if session is not None:
        session.close()
        del vars(shell)["_monarch_nb_session"]
