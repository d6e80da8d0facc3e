"""`%load_ext monarch_nb`, in any ipykernel and in terminal IPython."""

from __future__ import annotations

from typing import Any

from monarch_nb import control
from monarch_nb.notebook import magics
from monarch_nb.notebook.completion import hooks
from monarch_nb.notebook.completion.completer import Help
from monarch_nb.notebook.display import display
from monarch_nb.notebook.session import Session, session_of
from monarch_nb.notebook.source import tracebacks


def load_ipython_extension(shell: Any) -> None:
    """Add `%mesh`, `%%mesh` and the displays. Loading twice does nothing."""
    if session_of(shell) is not None:
        return
    session = Session(shell)
    session.start()
    magics.register(shell, session)
    display.register(shell, session)
    session.undo.append(hooks.install(shell, Help(session)))
    session.undo.append(tracebacks.hide_our_frames(shell))
    control.name_files(lambda filename: tracebacks.name_of_cell(shell, filename))
    session.undo.append(lambda: control.name_files(None))
    shell._monarch_nb_session = session


def unload_ipython_extension(shell: Any) -> None:
    """Take them away again. Meshes that are up stay up."""
    session = session_of(shell)
    if session is None:
        return
    session.close()
    display.unregister(shell)
    magics.unregister(shell)
    del shell._monarch_nb_session
