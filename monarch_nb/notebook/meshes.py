"""The meshes of a session: which exist, which one `%%mesh` means, and how they come and go.

Rules of the file: any thread may call, as buttons of the mesh view do. A mesh made with `%mesh up`
is kept until `%mesh down`; one made in Python belongs to its variable and is found through it. The
current mesh is the one used or made last. A mesh that was stopped is forgotten.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.notebook.display.units import mesh_text
from monarch_nb.notebook.errors import MagicError

if TYPE_CHECKING:
    from monarch_nb.control.api import Control, ProcMesh, Wanted

NO_MESH = "No mesh is up. Type: %mesh up --gpus 4"


class Asked(NamedTuple):
    """What `%mesh up` was asked for: the axes of each host in their order, the device, and the
    hosts; None: this machine.
    """

    sizes: tuple[tuple[str, int], ...]
    device: str = "auto"
    hosts: Wanted | None = None


class Meshes:
    """Names to meshes; the variables of the shell are searched too."""

    def __init__(self, shell: InteractiveShell, control: Control) -> None:
        self._shell = shell
        self._control = control
        self._kept: dict[str, ProcMesh] = {}
        self._asked: dict[str, Asked] = {}
        self._current: str | None = None
        self.is_unused = True
        """True until a mesh has come up."""
        self._starting: set[str] = set()
        self._lock = threading.RLock()

    @property
    def current(self) -> str | None:
        """Name of the mesh that `%%mesh` means."""
        with self._lock:
            self._forget_stopped()
            return self._current

    def pick(self, name: str | None = None) -> ProcMesh:
        """Return the mesh of that name, or the current one. Raises `MagicError`, also where
        another notebook drives it."""
        mesh = self.to_look_at(name)
        if (why := self._control.not_driven(mesh)) is not None:
            raise MagicError(why)
        return mesh

    def to_look_at(self, name: str | None = None) -> ProcMesh:
        """Return the mesh of that name, or the current one, whoever drives it. Raises
        `MagicError`."""
        with self._lock:
            self._forget_stopped()
            return self._picked(name)

    def _picked(self, name: str | None) -> ProcMesh:
        if name is None:
            return self._kept[self._current] if self._current else self._only_one()
        if name in self._kept:
            return self._kept[name]
        if self._is_live_mesh(variable := self._variables().get(name)):
            return variable
        found = self._of_variables()
        if name not in found:
            raise MagicError(f"There is no mesh {name!r}. {self._choices(found)}")
        return found[name]

    def glance(self, name: str | None = None) -> ProcMesh | None:
        """Return as `pick` does, from any thread: changes nothing, and gives None where that
        raises.
        """
        kept = self._kept.get(self._current or "")
        if name is None and self._is_live_mesh(kept):
            return kept
        found = self.living()
        if name is None:
            name = self._current or (next(iter(found)) if len(found) == 1 else "")
        elif name not in self._kept and self._is_live_mesh(it := self._variables().get(name)):
            return it
        return found.get(name)

    def current_name(self) -> str | None:
        """Return the mesh that `%%mesh` means, by the name that the mesh view shows. Any thread."""
        mesh = self.glance()
        return None if mesh is None else mesh.name

    def living(self) -> dict[str, ProcMesh]:
        """Return as `everything` does, from any thread: changes nothing."""
        stopped = self._control.is_stopped
        kept = {name: mesh for name, mesh in list(self._kept.items()) if not stopped(mesh)}
        return {**self._of_variables(), **kept}

    def everything(self) -> dict[str, ProcMesh]:
        with self._lock:
            self._forget_stopped()
            return {**self._of_variables(), **self._kept}

    def found(self, asked: Asked, name: str | None) -> tuple[str, bool] | None:
        """Return the mesh of `%mesh up` that is there already, and whether it was asked for in the
        same words: the one of this name, else one of the same words, else the current one.
        """
        with self._lock:
            self._forget_stopped()
            names = [each for each in self._asked if name in (None, each)]
            names.sort(key=lambda each: (self._asked[each] != asked, each != self._current))
            return (names[0], self._asked[names[0]] == asked) if names else None

    def asked(self, name: str) -> Asked | None:
        """Return what `%mesh up` was asked for; None for a mesh that was made in Python."""
        return self._asked.get(name)

    @contextlib.contextmanager
    def new_name(self, wanted: str | None) -> Iterator[str]:
        """Keep a free name for one mesh meanwhile. Raises `MagicError` when the wanted one is
        taken.
        """
        with self._lock:
            chosen = self._free_name(wanted)
            self._starting.add(chosen)
        try:
            yield chosen
        finally:
            self._starting.discard(chosen)

    def _free_name(self, wanted: str | None) -> str:
        taken = self.everything().keys() | self._starting
        if wanted in taken:
            raise MagicError(
                f"A mesh named {wanted!r} is up already. "
                f"Type: %mesh down {wanted}, or choose another --name, or --replace"
            )
        return wanted or next(name for name in _numbered() if name not in taken)

    def keep(self, name: str, mesh: ProcMesh, asked: Asked | None = None) -> bool:
        """Make it the current mesh. True when a variable of its name holds it too."""
        with self._lock:
            old = self._kept.pop(name, None)
            self._kept[name] = mesh
            self._current = name
            self.is_unused = False
            if asked is not None:
                self._asked[name] = asked
        return self._set_variable(name, mesh, old)

    def use(self, name: str, mesh: ProcMesh | None = None) -> None:
        """Make a mesh the current one: this, or the one that the name means. Where no variable has
        its name, as after `%reset`, there is one again."""
        with self._lock:
            self._kept[name] = mesh = self.to_look_at(name) if mesh is None else mesh
            self._current = name
        self._set_variable(name, mesh)

    def _set_variable(self, name: str, mesh: ProcMesh, old: ProcMesh | None = None) -> bool:
        # what the user has put there stays
        variables = self._variables()
        if name not in variables or variables[name] is old or self._is_over(variables[name]):
            variables[name] = mesh
        return variables[name] is mesh

    def forget(self, name: str) -> None:
        with self._lock:
            mesh = self._drop(name)
        if mesh is not None and self._variables().get(name) is mesh:
            del self._variables()[name]

    def _drop(self, name: str) -> ProcMesh | None:
        mesh = self._kept.pop(name, None)
        self._asked.pop(name, None)
        if self._current == name:
            self._current = next(reversed(self._kept), None)
        return mesh

    def _forget_stopped(self) -> None:
        # The variable stays: the mesh itself says why it is of no use any more
        for name, mesh in list(self._kept.items()):
            if self._control.is_stopped(mesh):
                self._drop(name)

    def _only_one(self) -> ProcMesh:
        found = self._of_variables()
        if len(found) == 1:
            return next(iter(found.values()))
        raise MagicError(f"Which mesh? {self._choices(found)}" if found else NO_MESH)

    def _of_variables(self) -> dict[str, ProcMesh]:
        # Meshes in the user's variables by their own name, the whole rather than a slice of it
        found: dict[str, ProcMesh] = {}
        for value in list(self._variables().values()):
            if self._is_live_mesh(value) and len(value) > len(found.get(value.name, ())):
                found[value.name] = value
        return found

    def _is_live_mesh(self, value: object) -> TypeGuard[ProcMesh]:
        return self._control.is_mesh(value) and not self._control.is_stopped(value)

    def _is_over(self, value: object) -> bool:
        return self._control.is_mesh(value) and self._control.is_stopped(value)

    def _variables(self) -> dict[str, Any]:
        variables: dict[str, Any] = self._shell.user_ns
        return variables

    def status_line(self) -> str:
        """Describe all meshes in one line; asks no rank, so that it never waits."""
        return "; ".join(map(self._status_of, self.everything().values())) or "no mesh is up"

    def _status_of(self, mesh: ProcMesh) -> str:
        lost = len(self._control.lost(mesh))
        return f"{mesh.name}: {mesh_text(mesh)}" + (f", {lost} lost" if lost else "")

    def _choices(self, found: Mapping[str, ProcMesh]) -> str:
        names = sorted({**found, **self._kept})
        if not names:
            return NO_MESH
        first = shlex.quote(names[0])  # in Python any text can be a name
        return f"Up: {', '.join(names)}. Type: %mesh use {first}, or %%mesh --name {first}"


def _numbered() -> Iterator[str]:
    number = 0
    while True:
        yield f"mesh{number}"
        number += 1
