"""`Workspace`: which folders of this host go to other hosts, and where they land there.

Names and arguments are Monarch's; who sends is `sync.py`. Nothing here touches a disk but
`merge`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from monarch_nb.core.wire.manifest import check_path


class Environment:
    """What the projects of a workspace need. A base to subclass, as in Monarch."""


@dataclass(frozen=True)
class CondaEnvironment(Environment):
    """A conda environment: the folder `prefix`, or the one that is active (`$CONDA_PREFIX`)."""

    prefix: str | None = None

    @property
    def conda_prefix(self) -> str:
        """Its folder. Raises `ValueError` if none is given and none is active."""
        found = self.prefix or os.environ.get("CONDA_PREFIX")
        if not found:
            raise ValueError(
                "no conda environment is active; type `conda activate <name>` before you start, or "
                "say which: Workspace(dirs, env=CondaEnvironment('/path/of/it'))"
            )
        return found

    @property
    def packages(self) -> Path:
        """Where its packages are. Raises `ValueError` if it has another Python than this one."""
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        found = Path(self.conda_prefix, "lib", python, "site-packages")
        if not found.is_dir():
            raise ValueError(
                f"{found} is not there: the conda environment {self.conda_prefix} has another "
                f"Python than the ranks ({python}); make one with `conda create python=...`"
            )
        return found


ACTIVE_CONDA_ENV: Final = CondaEnvironment()


class Workspace:
    """Folders that belong to a project; `HostMesh.sync_workspace` copies them to other hosts.

    Not meant for subclasses, but Monarch's programs may subclass it.

    Args:
        dirs: local folders, each landing under its own name in the workspace folder of a host; or
            `{local: where below it}`, "" being the workspace folder itself.
        env: the packages that go along with `sync_workspace(..., conda=True)`.
        exclude: what is left out besides `.git`, `__pycache__`, `*.pyc`, `.venv` and caches: names
            at any depth ("*.ckpt"), or paths ("data/raw/*").

    Raises:
        ValueError: an empty folder name, a place outside of the workspace folder, or places that
            lie in one another.

    Example:
        >>> Workspace([Path("/home/me/project")]).dirs
        {PosixPath('/home/me/project'): 'project'}
        >>> Workspace({"/home/me/project": "src/project"}, exclude=["*.ckpt"]).exclude
        ('*.ckpt',)
    """

    def __init__(
        self,
        dirs: Sequence[Path | str] | Mapping[Any, str] | None = None,
        env: Environment | None = ACTIVE_CONDA_ENV,
        *,
        exclude: Sequence[str] = (),
    ) -> None:
        self.env = env
        self.exclude = tuple(exclude)
        self.dirs: dict[Path, str] = {}
        if isinstance(dirs, str | Path):
            dirs = [dirs]
        pairs = dirs.items() if isinstance(dirs, Mapping) else [(each, None) for each in dirs or ()]
        for local, place in pairs:
            if not str(local):
                raise ValueError("an empty folder name in dirs; write '.' for the current folder")
            path = Path(local)
            self.dirs[path] = path.resolve().name if place is None else place
        _check_places(list(self.dirs.values()))

    @staticmethod
    def null() -> Workspace:
        """Make one without folders and environment."""
        return Workspace(env=None)

    def merge(self, outdir: str | Path) -> None:
        """Copy the folders into a local one, each to its place."""
        Path(outdir).mkdir(parents=True, exist_ok=True)
        for local, place in self.dirs.items():
            shutil.copytree(local, Path(outdir, place), symlinks=True, dirs_exist_ok=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workspace):
            return NotImplemented
        mine, theirs = (self.dirs, self.env, self.exclude), (other.dirs, other.env, other.exclude)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]  # as Python says it

    def __repr__(self) -> str:
        return f"Workspace({ {str(local): place for local, place in self.dirs.items()} })"


def _check_places(places: list[str]) -> None:
    for place in places:
        if place:
            check_path(place)
    for place in places:
        others = list(places)
        others.remove(place)
        if any(
            each == place or f"{place}/".startswith(f"{each}/" if each else "") for each in others
        ):
            raise ValueError(
                f"the place {place!r} lies in that of another folder of the workspace; give each a "
                "place of its own: Workspace({'/a/src': 'a', '/b/src': 'b'})"
            )
