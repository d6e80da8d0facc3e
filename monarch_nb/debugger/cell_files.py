"""The files of cells: a debugger takes no breakpoint in a file that is not there.

Their names are the same on every host, for a front end computes them. What is written there is the
user's code, so the folder is private, and no file is written through a link of somebody else's.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import Final

from monarch_nb.net.private import make_private, write_new

_CELL_FILE: Final = re.compile(r".*[/\\]ipykernel_[0-9]+[/\\][0-9]+\.py")


def new_folder() -> Path:
    """Return a name for the folder of a kernel's cells, which is not made before it is needed.

    Nobody can be there first, as it cannot be guessed. It begins as ipykernel's does: some
    libraries know the functions of cells by that.
    """
    number = f"{os.getpid()}{secrets.randbelow(10**9):09}"
    return Path(tempfile.gettempdir()) / f"ipykernel_{number}"


class CellFiles:
    """Those that this process has written."""

    def __init__(self) -> None:
        self._written: list[Path] = []

    def write(self, path: str, code: str) -> dict[str, object]:
        """Have a cell's file be there. Raises `ValueError` for any other path, `AuthError` where
        the folder is somebody else's, or open to others."""
        if not _CELL_FILE.fullmatch(path):
            raise ValueError(f"{path} is no file of a cell")
        file = Path(path)
        make_private(file.parent)
        with contextlib.suppress(FileExistsError):  # its name says what is in it
            write_new(file, code)
            self._written.append(file)
        return {"sourcePath": path}

    def remove(self) -> None:
        """Remove them, and folders that were made for them and are empty."""
        for file in self._written:
            file.unlink(missing_ok=True)
        for folder in {file.parent for file in self._written}:
            with contextlib.suppress(OSError):  # another process has files there
                folder.rmdir()
        self._written.clear()
