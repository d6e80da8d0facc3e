"""What a notebook gets where a mesh is the last expression of a cell, and of `%mesh show`.

Rules of the file: text first, then a picture, which notebooks without a kernel are left with; a
widget and our own format only for a page that can show them. One widget serves all displays of the
same part of a mesh. Nothing is started to show a mesh.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.notebook.shells import has_reader, kernel_of
from monarch_nb.notebook.view.picture import picture, snapshots
from monarch_nb.notebook.view.picture.snapshots import Looks, Part, State, Still

if TYPE_CHECKING:
    from monarch_nb.control.api import Control
    from monarch_nb.notebook.view.answers.hub import Channel, Send

MESH: Final = "application/vnd.monarch-nb.mesh+json"
VIEW: Final = "application/vnd.jupyter.widget-view+json"

Bundle = tuple[dict[str, Any], dict[str, Any]]
Key = tuple[str, tuple[int, ...] | None]


class Showing:
    """Shows the meshes of a session."""

    def __init__(
        self, shell: InteractiveShell, control: Control, open_channel: Callable[[Send], Channel]
    ) -> None:
        self._shell = shell
        self._control = control
        self._open_channel = open_channel
        self._looks = Looks(shell, control)
        self._widgets: dict[Key, Any] = {}
        self._lock = threading.Lock()

    def bundle(self, *meshes: Any) -> Bundle:
        """The mime bundle and its metadata of a mesh of processes or of actors, of a slice, or of
        several slices of the same mesh."""
        part = self._part(*meshes)
        still = self._looks.still(part)
        if still is None:
            return {"text/plain": part.said, "text/html": _unknown(part)}, {}
        data: dict[str, Any] = {"text/plain": picture.text(still), "text/html": picture.page(still)}
        if kernel_of(self._shell) is None:
            return data, {}
        view, metadata = self._view(still) if has_reader(self._shell) else ({}, {})
        return {**data, **view, MESH: _saved(still, view)}, metadata

    def _part(self, mesh: Any, *more: Any) -> Part:
        if home := self._control.home(mesh):
            return Part(mesh.name, repr(mesh), home[0], tuple(home[1]), dict(mesh.sizes))
        is_over = self._control.is_stopped(mesh)
        name = mesh.name
        if not more:
            return Part(name, repr(mesh), name, tuple(mesh.ranks), dict(mesh.sizes), is_over)
        ranks = tuple(sorted(rank for each in (mesh, *more) for rank in each.ranks))
        said = f"{name}, {rank_words(ranks)}"
        return Part(name, said, name, ranks, {"rank": len(ranks)}, is_over)

    def close(self) -> None:
        """Take all widgets from all pages."""
        with self._lock:
            widgets, self._widgets = self._widgets, {}
        for each in widgets.values():
            each.close()

    def _view(self, still: Still) -> Bundle:
        data, metadata = self._widget(still)._repr_mimebundle_()
        return {VIEW: data[VIEW]}, metadata

    def _widget(self, still: Still) -> Any:
        from monarch_nb.notebook.view.browser import widget  # 0.1 s of imports

        key = (still.part.mesh, still.ranks)
        with self._lock:
            found = self._widgets.pop(key, None)
            if found is None or found.is_closed:
                look = _Look(self._looks, still)
                found = widget.MeshWidget(*key, look, self._open_channel)
            self._widgets[key] = found
            spare = self._spare(found, widget.MAX_WIDGETS)
        if spare is not None:
            spare.close()
        return found

    def _spare(self, kept: Any, most: int) -> Any:
        """A widget that has to go; the lock is held."""
        if len(self._widgets) <= most:
            return None
        others = {key: each for key, each in self._widgets.items() if each is not kept}
        oldest = min(others, key=lambda key: others[key].heard_s)
        return self._widgets.pop(oldest)


class _Look:
    """What a widget tells a page that asks: a mesh that is gone stays, and says so."""

    def __init__(self, looks: Looks, still: Still) -> None:
        self._looks = looks
        self._part = still.part
        self._last: State = still.state()
        self._is_new = True

    def __call__(self) -> State:
        if self._is_new:  # the widget is being made of what was seen just now
            self._is_new = False
            return self._last
        still = self._looks.still(self._part, snapshots.SHARED_S)
        self._last = snapshots.gone(self._last) if still is None else still.state()
        return self._last


def _unknown(part: Part) -> str:
    return f"<code>{html.escape(part.said)}</code>"


def _saved(still: Still, view: Mapping[str, Any]) -> State:
    """What our extension shows: live while the kernel lives, the picture of then afterwards."""
    return {
        "v": snapshots.VERSION,
        "mesh": still.part.mesh,
        "ranks": still.ranks,
        "model_id": view[VIEW]["model_id"] if view else None,
        "time": still.taken.isoformat(timespec="seconds"),
        "snapshot": still.state(),
    }
