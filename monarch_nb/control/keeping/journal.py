"""What a controller writes down of kept meshes while it drives them: all that the next one needs to
own them, a file for each mesh of processes or actors.

Rule: a file is written whole, beside the old one, and then takes its place; it is there before
anybody is told that the mesh is. The folder is the private run dir.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from monarch_nb.core.wire import pickling
from monarch_nb.errors import EncodeError
from monarch_nb.meshes.hosts import KeptProcs
from monarch_nb.meshes.spawning import KeptActors
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process.supervision.supervision import MeshState

MAX_BYTES: Final = 64 << 20
"""Of the arguments of actors: larger ones are not written, and those actors are lost with the
controller that has them."""
_SUFFIX: Final = ".mesh"


class Journal:
    """Of the meshes of one controller."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir

    def note(self, state: MeshState) -> str | None:
        """Write down a mesh as it is now. Returns why it could not be, for people."""
        if not isinstance(state, ProcsState | ActorsState) or state.kept is None:
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
        return self._folder / f"{state.number:016x}{_SUFFIX}"


def read_procs(run_dir: Path) -> list[KeptProcs]:
    """Return the meshes of processes that are written down and can be read."""
    return [each for each in read(run_dir) if isinstance(each, KeptProcs)]


def read(run_dir: Path) -> Iterator[KeptProcs | KeptActors | str]:
    """Return what was written down, processes before the actors on them; a text for what cannot be
    read, as a class whose module is not there."""
    found: list[KeptProcs | KeptActors | str] = []
    for path in sorted(run_dir.glob(f"*{_SUFFIX}"), key=os.path.getmtime):
        try:
            found.append(pickling.loads(path.read_bytes()))
        except Exception as error:  # noqa: BLE001  unpickling imports modules of the user's
            found.append(f"{type(error).__name__}: {error}")
    yield from (each for each in found if isinstance(each, KeptProcs))
    yield from (each for each in found if not isinstance(each, KeptProcs))
