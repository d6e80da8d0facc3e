"""What is ours alone in a file system that other users of the host share.

Rule: a folder that holds sockets, keys or text of the user's is made by us with mode 0700, or found
to be that; a file in it is new or is refused. Nothing is written through a link, and nothing where
another user could put something else in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from monarch_nb.errors import AuthError

_OTHERS_MAY_WRITE: Final = 0o022


def check_private(directory: Path) -> None:
    """Refuse a directory that another user could enter, and a link. Raises `AuthError`."""
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise AuthError(f"{directory} must be a directory of mode 0700 that you own")


def make_private(directory: Path) -> None:
    """Make a directory of mode 0700, with those above it that are missing, which are private too,
    or find it there. Raises `AuthError` where another user has been first."""
    if not directory.parent.exists():
        make_private(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    check_private(directory)


def check_keeps(directory: Path) -> None:
    """Refuse a directory in which another user could put something else in the place of what we
    make: nobody else may write there, or it is as /tmp is. Raises `AuthError`."""
    info = directory.stat()
    is_sticky = bool(info.st_mode & stat.S_ISVTX)
    is_safe = is_sticky or not info.st_mode & _OTHERS_MAY_WRITE
    if not is_safe or info.st_uid not in {0, os.getuid()}:
        raise AuthError(
            f"other users may replace what is in {directory}: choose a folder that you own, and "
            f"that only you may write to (chmod go-w {directory})"
        )


def check_own(directory: Path) -> None:
    """Refuse a directory into which another user could put a file: what is in it is run. A link
    must be the user's as well. Raises `AuthError`."""
    link, info = directory.lstat(), directory.stat()
    is_mine = {link.st_uid, info.st_uid} == {os.getuid()}
    if not stat.S_ISDIR(info.st_mode) or not is_mine or info.st_mode & _OTHERS_MAY_WRITE:
        raise AuthError(
            f"{directory} must be a directory that you own and that only you may write to: code is "
            f"imported from there. Choose another, or type: chmod go-w {directory}"
        )


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet, of mode 0600. Raises `FileExistsError` if it is, or a
    link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def read_private(path: Path) -> str:
    """Return the text of a file that is ours alone. Raises `AuthError` otherwise."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise AuthError(f"{path} cannot be read as a key file: {error.strerror}") from error
    with os.fdopen(fd) as file:
        info = os.fstat(fd)
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise AuthError(f"{path} must be yours and of mode 0600: chmod 600 {path}")
        return file.read()


def read_record(path: Path, form: str, numbers: Collection[str]) -> dict[str, Any]:
    """Return what is in a file that is ours alone: a JSON object, without its "format", which must
    be `form`. The fields `numbers` are whole numbers, if they are there.

    Raises `AuthError` as `read_private`, `ValueError` for anything else.
    """
    try:
        said = json.loads(read_private(path))
    except RecursionError:
        said = None
    if not isinstance(said, dict) or said.pop("format", None) != form:
        raise ValueError(f"{path} is of another version of monarch_nb")
    if wrong := [name for name in numbers if type(said.get(name, 0)) is not int]:
        raise ValueError(f"{path}: {wrong[0]} is no whole number")
    return said
