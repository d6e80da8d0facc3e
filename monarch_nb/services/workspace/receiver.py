"""`WorkspaceReceiver`: the end of a sync that writes, one per host.

Rules: nothing is written outside of the workspace folder, whoever asks; nothing of the old is
touched before everything has come (bytes are staged beside it and renamed into place); only what
an earlier sync has brought is ever deleted, so what ranks have written there stays.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.core.wire.manifest import FILE, FOLDER, LINK, OWN, Entry, check_entries, check_path
from monarch_nb.meshes.synced import WORKSPACE_DIR
from monarch_nb.net.keys import key_folder
from monarch_nb.net.private import check_own
from monarch_nb.services.workspace.trees import Piece, digest, look

_FORGOTTEN_S: Final = 3600.0  # staged by a sync that never ended


def workspace_root() -> Path:
    return Path(os.environ.get(WORKSPACE_DIR) or key_folder() / "workspace").absolute()


class WorkspaceReceiver(Actor):
    """Takes folders into this host's workspace folder."""

    def __init__(self) -> None:
        self._root = workspace_root()
        self._folders: dict[str, _Folder] = {}

    @endpoint
    def where(self) -> tuple[str, str]:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own(self._root)
        return socket.gethostname(), str(self._root.resolve())

    @endpoint
    def compare(self, place: str, entries: Sequence[Entry]) -> dict[str, bytes]:
        """Take more of what shall be in a folder; return the files that may differ: a digest of
        what is here, or nothing if it is surely another."""
        if place not in self._folders:
            self._folders[place] = _Folder(self._root.resolve(), place)
        return self._folders[place].compare(entries)

    @endpoint
    def write(self, place: str, pieces: Sequence[Piece]) -> None:
        for path, offset, data in pieces:
            with _named(path):
                self._folders[place].write(path, offset, data)

    @endpoint
    def commit(
        self, place: str, amended: Sequence[Entry], vanished: Sequence[str]
    ) -> dict[str, list[str]]:
        """Put everything, which has come, into place. What was `written` and `deleted`,
        absolute."""
        folder = self._folders.pop(place)
        try:
            return folder.commit(amended, vanished)
        finally:
            folder.close()

    def __cleanup__(self, exc: Exception | None) -> None:
        del exc
        for folder in self._folders.values():
            folder.close()


@contextlib.contextmanager
def _named(path: str) -> Any:
    try:
        yield
    except OSError as error:
        raise OSError(f"{path}: {error.strerror or error}") from error


class _Folder:
    def __init__(self, root: Path, place: str) -> None:
        if place:
            check_path(place)
        self._top = root / place
        own = root / OWN
        self._record = own / f"{quote(place, safe='')}.json"
        self._staging = own / f"staging-{secrets.token_hex(8)}"
        self._staging.mkdir(mode=0o700, parents=True)
        _remove_forgotten(own)
        self._wanted: dict[str, Entry] = {}
        self._known = {""}
        self._only_looking = True
        self._real: dict[Path, bool] = {}
        self._staged: dict[str, Path] = {}
        self._gone: dict[str, str] = {}
        self._written: list[str] = []
        self._deleted: list[str] = []

    def compare(self, entries: Sequence[Entry]) -> dict[str, bytes]:
        check_entries(entries, self._known)
        differs: dict[str, bytes] = {}
        for entry in entries:
            self._wanted[entry.path] = entry
            if entry.kind == FILE and (found := self._unlike(entry)) is not None:
                differs[entry.path] = found
        return differs

    def _unlike(self, entry: Entry) -> bytes | None:
        here = self._look(entry.path)
        if here is None or here.kind != FILE or here.size != entry.size:
            return b""
        return None if here.mtime_ns == entry.mtime_ns else digest(self._top / entry.path)

    def _look(self, path: str) -> Entry | None:
        if not self._is_real((self._top / path).parent):
            return None
        with contextlib.suppress(ValueError):  # a link of somebody else's
            return look(self._top, path)
        return Entry(path, LINK)

    def _is_real(self, folder: Path) -> bool:
        found = self._real.get(folder)
        if found is None:
            found = os.path.realpath(folder) == str(folder)
            if self._only_looking:
                self._real[folder] = found
        return found

    def write(self, path: str, offset: int, data: bytes) -> None:
        if self._wanted[path].kind != FILE:
            raise ValueError(f"{path!r} is refused: it was not announced as a file")
        staged = self._staged.setdefault(path, self._staging / str(len(self._staged)))
        handle = os.open(staged, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        try:
            while data:
                count = os.pwrite(handle, data, offset)
                data, offset = data[count:], offset + count
        finally:
            os.close(handle)

    # everything has come

    def commit(self, amended: Sequence[Entry], vanished: Sequence[str]) -> dict[str, list[str]]:
        self._only_looking = False
        self._real.clear()
        for entry in amended:
            if self._wanted[entry.path].kind != FILE or entry.kind != FILE:
                raise ValueError(f"{entry.path!r} is refused: it was not announced as a file")
            self._wanted[entry.path] = entry
        for path in vanished:
            del self._wanted[path]
        self._gone = {k: v for k, v in self._brought_before().items() if k not in self._wanted}
        for entry in self._wanted.values():
            self._check_came(entry)
            self._check_free(entry)
        self._top.mkdir(parents=True, exist_ok=True)
        for entry in self._wanted.values():
            with _named(entry.path):
                self._put(entry)
        self._delete_gone("")
        self._remember()
        return {"written": self._written, "deleted": self._deleted}

    def _check_came(self, entry: Entry) -> None:
        if entry.kind != FILE:
            return
        staged = self._staged.get(entry.path)
        if staged is not None:
            size = staged.stat().st_size
        else:
            here = self._look(entry.path)
            size = -1 if here is None or here.kind != FILE else here.size
        if size != entry.size:
            raise OSError(f"{entry.path}: it did not arrive whole; sync again")

    def _check_free(self, entry: Entry) -> None:
        # Refuse to put a file where a folder has files that no sync has brought
        here = None if entry.kind == FOLDER else self._look(entry.path)
        if here is None or here.kind != FOLDER:
            return
        for folder, _, names in os.walk(self._top / entry.path):
            below = Path(folder).relative_to(self._top)
            others = [name for name in names if str(below / name) not in self._gone]
            if others and below.name != "__pycache__":
                raise OSError(
                    f"{entry.path}: a folder is there, with files that no sync has brought "
                    f"({below / others[0]}); move it away"
                )

    def _put(self, entry: Entry) -> None:
        path = self._top / entry.path
        if not self._is_real(path.parent):
            raise OSError("its folder is a symbolic link there; remove that link")
        here = self._look(entry.path)
        if here is not None and here.kind != entry.kind:
            self._clear(entry.path, here)
        if entry.kind == FOLDER:
            path.mkdir(exist_ok=True)
            path.chmod(entry.mode | 0o700)
        elif entry.kind == LINK:
            if here is None or here.target != entry.target:
                self._put_link(path, entry.target)
        else:
            self._put_file(path, entry)

    def _put_link(self, path: Path, target: str) -> None:
        made = self._staging / "link"
        made.symlink_to(target)
        made.replace(path)
        self._written.append(str(path))

    def _put_file(self, path: Path, entry: Entry) -> None:
        staged = self._staged.get(entry.path)
        place = path if staged is None else staged
        place.chmod(entry.mode)
        os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        if staged is not None:
            staged.replace(path)
            _forget_compiled(path)
            self._written.append(str(path))

    def _clear(self, path: str, here: Entry) -> None:
        if here.kind != FOLDER:
            (self._top / path).unlink(missing_ok=True)  # two hosts may share a folder
            return
        self._delete_gone(f"{path}/")
        self._delete(path, FOLDER)
        self._gone.pop(path, None)

    def _delete_gone(self, prefix: str) -> None:
        for path in sorted((each for each in self._gone if each.startswith(prefix)), reverse=True):
            with _named(path):
                self._delete(path, self._gone.pop(path))

    def _delete(self, path: str, kind: str) -> None:
        here, place = self._look(path), self._top / path
        if here is None:
            return
        if here.kind == FOLDER:
            if kind == FOLDER:
                shutil.rmtree(place / "__pycache__", ignore_errors=True)
                with contextlib.suppress(OSError):  # files of others keep it
                    place.rmdir()
        else:
            place.unlink(missing_ok=True)
            _forget_compiled(place)
            self._deleted.append(str(place))

    # what was brought, to be deleted one day

    def _brought_before(self) -> dict[str, str]:
        try:
            found = json.loads(self._record.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        for path in found:
            check_path(path)
        return dict(found)

    def _remember(self) -> None:
        kinds = {path: entry.kind for path, entry in self._wanted.items()}
        made = self._staging / "record"
        made.write_text(json.dumps(kinds))
        made.replace(self._record)

    def close(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)


def _forget_compiled(path: Path) -> None:
    # What Python has compiled of it: a change within a second may look the same to it
    if path.suffix == ".py":
        own = Path(importlib.util.cache_from_source(path))  # may be kept elsewhere
        for each in (own, *(path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")):
            each.unlink(missing_ok=True)


def _remove_forgotten(own: Path) -> None:
    for each in own.glob("staging-*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(each, ignore_errors=True)
