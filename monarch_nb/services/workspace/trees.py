"""Looking at folders: their manifest, digests of files, and pieces of files on their way.

Both ends of a sync use it; it reads and never writes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from monarch_nb.core.wire.manifest import (
    EXCLUDED,
    FILE,
    FOLDER,
    LINK,
    Entry,
    check_link,
    is_excluded,
)

CHUNK_BYTES: Final = 512 << 10  # of files, in one message
_ENTRY_BYTES: Final = 256  # what a piece costs besides its bytes
Piece = tuple[str, int, bytes]  # path, offset, bytes


def scan(top: Path, exclude: Iterable[str] = ()) -> list[Entry]:
    """List everything below a folder that is to be copied, folders before what is in them.

    Raises `ValueError` for a link that leaves it, `OSError` for what cannot be read. Sockets,
    pipes and devices are passed over.
    """
    patterns = (*EXCLUDED, *exclude)
    found: list[Entry] = []

    def visit(folder: str) -> None:
        with os.scandir(top / folder) as inside:
            names = sorted(each.name for each in inside)
        for name in names:
            path = f"{folder}/{name}" if folder else name
            if is_excluded(path, patterns):
                continue
            entry = look(top, path)
            if entry is not None:
                found.append(entry)
                if entry.kind == FOLDER:
                    visit(path)

    visit("")
    return found


def look(top: Path, path: str) -> Entry | None:
    try:
        status = os.lstat(top / path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, FOLDER, status.st_mode & 0o777)
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, LINK, target=_target(top, path))
    if stat.S_ISREG(status.st_mode):
        return _file(path, status)
    return None


def _file(path: str, status: os.stat_result) -> Entry:
    return Entry(path, FILE, status.st_mode & 0o777, status.st_size, status.st_mtime_ns)


def _target(top: Path, path: str) -> str:
    target = str((top / path).readlink())
    if target.startswith("/"):
        inside = os.path.normpath(target)
        if inside == str(top) or inside.startswith(f"{top}/"):
            target = os.path.relpath(inside, (top / path).parent)
    check_link(path, target)
    return target


def digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).digest()


class Pieces:
    """The bytes of some files, in batches of `CHUNK_BYTES`. A file is read as long as it was when
    it was opened: what is written meanwhile comes with the next sync, because its time differs.

    `amended` are the files that are no longer as announced, `vanished` those that are gone.
    """

    def __init__(self, top: Path, entries: Iterable[Entry]) -> None:
        self._top = top
        self._entries = entries
        self.amended: list[Entry] = []
        self.vanished: list[str] = []
        self.files = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        room = CHUNK_BYTES
        for piece in self._all():
            batch.append(piece)
            room -= len(piece[2]) + _ENTRY_BYTES
            if room <= 0:
                yield batch
                batch, room = [], CHUNK_BYTES
        if batch:
            yield batch

    def _all(self) -> Iterator[Piece]:
        for entry in self._entries:
            try:
                handle = os.open(self._top / entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                self.vanished.append(entry.path)
                continue
            try:
                yield from self._of(handle, entry)
            finally:
                os.close(handle)

    def _of(self, handle: int, entry: Entry) -> Iterator[Piece]:
        now = _file(entry.path, os.fstat(handle))
        offset = 0
        while True:
            data = os.pread(handle, min(CHUNK_BYTES, now.size - offset), offset)
            yield entry.path, offset, data
            offset += len(data)
            if not data or offset >= now.size:
                break
        self.files += 1
        self.bytes += offset
        if (now := now._replace(size=offset)) != entry:
            self.amended.append(now)
