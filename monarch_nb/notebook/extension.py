"""`%load_ext monarch_nb`, in any ipykernel and in terminal IPython."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb import control
from monarch_nb.control.api import Control
from monarch_nb.notebook import magics
from monarch_nb.notebook.completion import completer
from monarch_nb.notebook.display import display
from monarch_nb.notebook.session import Session, session_of
from monarch_nb.notebook.source import tracebacks


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add `%mesh`, `%%mesh` and the displays. Loading twice does nothing."""
    if session_of(shell) is None:
        load(shell, Control())


def load(shell: InteractiveShell, with_control: Control) -> Session:
    """As `load_ipython_extension`, for a shell that has not loaded it, on this controller."""
    session = Session(shell, with_control)
    session.start()
    magics.register(shell, session)
    session.on_close(lambda: magics.unregister(shell))
    display.register(shell, session.showing)
    session.on_close(lambda: display.unregister(shell))
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
