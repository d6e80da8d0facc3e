"""What a controller writes down of kept meshes while it drives them: all that the next one needs to
own them, a file for each mesh of processes or actors.

Rule: a file is written whole, beside the old one, and then takes its place; it is there before
anybody is told that the mesh is. The folder is the private run dir.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from monarch_nb.core.wire import pickling
from monarch_nb.errors import EncodeError
from monarch_nb.meshes.hosts import KeptProcs
from monarch_nb.meshes.spawning import KeptActors
from monarch_nb.process.supervision.supervision import MeshState

MAX_BYTES: Final = 64 << 20
"""Of the arguments of actors: larger ones are not written, and those actors are lost with the
controller that has them."""
_PROCS: Final = ".procs"
_ACTORS: Final = ".actors"


class Journal:
    """Writes down the meshes of one controller."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, state: MeshState) -> str | None:
        """Write down a mesh as it is now. Returns why it could not be, for people."""
        if state.kept is None:
            return None
        try:
            data = pickling.dumps(state.kept())
        except EncodeError as error:
            return f"{state.kind} mesh {state.name!r} cannot be kept: {error}"
        if len(data) > MAX_BYTES:
            mb = len(data) >> 20
            return f"actors {state.name!r} cannot be kept: {mb} MB of arguments are too large"
        path = self._path(state)
        draft = path.with_suffix(".draft")
        draft.touch(0o600)
        draft.write_bytes(data)
        draft.replace(path)
        return None

    def forget(self, state: MeshState) -> None:
        """Forget a mesh that has ended; harmless when repeated."""
        self._path(state).unlink(missing_ok=True)

    def _path(self, state: MeshState) -> Path:
        return self._folder / f"{state.number:016x}{_ACTORS if state.kind == 'actor' else _PROCS}"


def written(run_dir: Path) -> frozenset[tuple[str, int]]:
    """Return the files of meshes of processes, and when each was written: to see a change."""
    return frozenset((path.name, at) for at, path in _files(run_dir, _PROCS))


def read_procs(run_dir: Path) -> list[KeptProcs]:
    """Return the meshes of processes that are written down and can be read."""
    return [each for each in _read(run_dir, _PROCS) if isinstance(each, KeptProcs)]


def read(run_dir: Path) -> Iterator[KeptProcs | KeptActors | str]:
    """Return what was written down, processes before the actors on them; a text for what cannot be
    read, as a class whose module is not there."""
    yield from _read(run_dir, _PROCS)
    yield from _read(run_dir, _ACTORS)


def _read(run_dir: Path, suffix: str) -> Iterator[KeptProcs | KeptActors | str]:
    for _, path in _files(run_dir, suffix):
        try:
            yield pickling.loads(path.read_bytes())
        except Exception as error:  # noqa: BLE001  unpickling imports modules of the user's
            yield f"{type(error).__name__}: {error}"


def _files(run_dir: Path, suffix: str) -> list[tuple[int, Path]]:
    # those that were written first come first; the controller may remove one meanwhile
    found = []
    for path in run_dir.glob(f"*{suffix}"):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, path))
    return sorted(found)
