"""What a folder holds, as plain data, and which names may never be used on the receiving side.

Rules: a path is relative, with `/` between its parts, and never leaves its folder; neither does a
link, whatever links it passes through. Pure: nothing here looks at a disk.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

FILE: Final = "file"
LINK: Final = "link"
FOLDER: Final = "folder"

OWN: Final = ".monarch-sync"  # the receiver's records and what is on its way, at the root
EXCLUDED: Final = (
    *(OWN, ".git", ".hg", ".svn", "__pycache__", "*.pyc", ".venv"),
    *(".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
)


class Entry(NamedTuple):
    """A file, a symbolic link or a folder. `mode` is the permission bits; `target` a link's."""

    path: str
    kind: str
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    target: str = ""


def is_excluded(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether a path is left out; a pattern with `/` means the path, else the name."""
    name = posixpath.basename(path)
    return any(fnmatch.fnmatchcase(path if "/" in each else name, each) for each in patterns)


def check_path(path: str) -> None:
    """Raise `ValueError` for a path that is empty, absolute, or goes up."""
    parts = path.split("/")
    if "\0" in path or not {"", ".", ".."}.isdisjoint(parts) or parts[0] == OWN:
        raise ValueError(f"{path!r} is refused: it is no path inside the workspace")


def check_link(path: str, target: str) -> None:
    """Raise `ValueError` for a link that leaves the folder.

    `..` may stand at the beginning only: behind a name it could start from wherever a link leads.
    """
    parts = target.split("/")
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    depth = path.count("/")
    if not target or "\0" in target or target[0] == "/" or ".." in parts[ups:] or ups > depth:
        raise ValueError(
            f"{path!r} is a symbolic link to {target!r}, which leaves the workspace; remove it, or "
            f"leave it out: Workspace(..., exclude=[{path!r}])"
        )


def check_entries(entries: Sequence[Entry], folders: set[str]) -> None:
    """Raise `ValueError` unless each is allowed and lies in one of `folders`, which grows."""
    for entry in entries:
        check_path(entry.path)
        if posixpath.dirname(entry.path) not in folders:
            raise ValueError(
                f"{entry.path!r} is refused: it does not lie in a folder that was sent"
            )
        if entry.kind == LINK:
            check_link(entry.path, entry.target)
        elif entry.kind == FOLDER:
            folders.add(entry.path)
        elif entry.kind != FILE:
            raise ValueError(f"{entry.path!r} is refused: {entry.kind!r} is no kind of file")
