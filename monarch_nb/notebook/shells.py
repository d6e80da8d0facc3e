"""The shell of IPython as this package sees it: perhaps a kernel's, perhaps a terminal's.

Rule of the file: what ipykernel adds to a shell is asked for here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from IPython.core.interactiveshell import InteractiveShell

if TYPE_CHECKING:
    from monarch_nb.notebook.output.kept import KeptOutputs

Header = Mapping[str, Any]
Message = Mapping[str, Any]  # of Jupyter's protocol, in either direction
Kernel: TypeAlias = Any  # of ipykernel, which a terminal does without


def kernel_of(shell: InteractiveShell) -> Kernel | None:
    """Return the kernel that the shell belongs to; None in a terminal."""
    return getattr(shell, "kernel", None)


def kept_outputs_of(shell: InteractiveShell) -> KeptOutputs | None:
    """Return what stands below cells; None in a terminal and in a kernel that keeps nothing."""
    found: KeptOutputs | None = getattr(getattr(kernel_of(shell), "session", None), "kept", None)
    return found


def request_of(shell: InteractiveShell) -> Message:
    """Return the front end's message that the shell is handling: the cell that runs."""
    request: Message = {} if kernel_of(shell) is None else shell.get_parent()  # type: ignore[attr-defined]  # of ipykernel's shell
    return request


def cell_id_of(shell: InteractiveShell) -> str | None:
    """Return what JupyterLab calls the cell that the shell is about to run."""
    found = request_of(shell).get("metadata", {}).get("cellId")
    return found if isinstance(found, str) else None


def has_reader(shell: InteractiveShell) -> bool:
    """Tell whether a person may look while the cell runs: no terminal, no program that runs it."""
    if kernel_of(shell) is None:
        return False
    return bool(request_of(shell).get("content", {}).get("allow_stdin", True))
