"""What a notebook gets where a mesh is the last expression of a cell, and of `%mesh show`.

Rules of the file: text first, then a picture, which notebooks without a kernel are left with; our
own format, which our extension of JupyterLab shows live, only in a kernel. A widget only for who
asks for it: front ends that do not know it would show an error in place of the picture. One widget
serves all displays of the same part of a mesh. Nothing is started to show a mesh.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.notebook.errors import MagicError
from monarch_nb.notebook.shells import has_reader, kernel_of
from monarch_nb.notebook.view.picture import picture, snapshots
from monarch_nb.notebook.view.picture.snapshots import MeshSnapshot, Part, SnapshotReader, State

if TYPE_CHECKING:
    from monarch_nb.control.api import Control
    from monarch_nb.notebook.view.answers.hub import Channel, Send
    from monarch_nb.notebook.view.browser.widget import MeshWidget

MESH: Final = "application/vnd.monarch-nb.mesh+json"
VIEW: Final = "application/vnd.jupyter.widget-view+json"

NO_ANYWIDGET: Final = (
    "%mesh show --widget needs anywidget: pip install 'monarch_nb[anywidget]', where the kernel"
    " and where the page's server are. JupyterLab needs neither: %mesh show is live there"
)

Bundle = tuple[dict[str, object], dict[str, object]]
Key = tuple[str, tuple[int, ...] | None]


class Showing:
    """Shows the meshes of a session."""

    def __init__(
        self, shell: InteractiveShell, control: Control, open_channel: Callable[[Send], Channel]
    ) -> None:
        self._shell = shell
        self._control = control
        self._open_channel = open_channel
        self._reader = SnapshotReader(shell, control)
        self._widgets: dict[Key, MeshWidget] = {}
        self._lock = threading.Lock()

    def bundle(self, *meshes: Any, widget: bool = False) -> Bundle:
        """Return the mime bundle and metadata of a mesh of processes or actors, or of slices of
        one; with a `widget` where somebody reads.

        Raises `MagicError` where anywidget is missing.
        """
        part = self._part(*meshes)
        snapshot = self._reader.read(part)
        if snapshot is None:
            return {
                "text/plain": part.said,
                "text/html": f"<code>{html.escape(part.said)}</code>",
            }, {}
        past = self._reader.history(snapshot)
        data: dict[str, Any] = {
            "text/plain": picture.text(snapshot, past),
            "text/html": picture.page(snapshot, past),
        }
        if kernel_of(self._shell) is None:
            return data, {}
        wanted = widget and has_reader(self._shell)
        view, metadata = self._view(snapshot) if wanted else ({}, {})
        return {**data, **view, MESH: _saved(snapshot)}, metadata

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

    def _view(self, snapshot: MeshSnapshot) -> Bundle:
        bundle: Any = self._widget(snapshot)._repr_mimebundle_()
        data, metadata = bundle
        return {VIEW: data[VIEW]}, metadata

    def _widget(self, snapshot: MeshSnapshot) -> MeshWidget:
        try:
            from monarch_nb.notebook.view.browser import widget  # 0.1 s of imports
        except ModuleNotFoundError as error:
            if error.name != "anywidget":
                raise
            raise MagicError(NO_ANYWIDGET) from None
        key = (snapshot.part.mesh, snapshot.ranks)
        with self._lock:
            found = self._widgets.pop(key, None)
            if found is None or found.is_closed:
                read = _StateReader(self._reader, snapshot)
                found = widget.MeshWidget(*key, read, self._open_channel)
            self._widgets[key] = found
            spare = self._spare(found, widget.MAX_WIDGETS)
        if spare is not None:
            spare.close()
        return found

    def _spare(self, kept: MeshWidget, most: int) -> MeshWidget | None:
        # A widget that has to go; the lock is held
        if len(self._widgets) <= most:
            return None
        others = {key: each for key, each in self._widgets.items() if each is not kept}
        oldest = min(others, key=lambda key: others[key].heard_s)
        return self._widgets.pop(oldest)


class _StateReader:
    """What a widget tells a page that asks: a mesh that is gone stays, and says so."""

    def __init__(self, reader: SnapshotReader, snapshot: MeshSnapshot) -> None:
        self._reader = reader
        self._part = snapshot.part
        self._last: State = snapshot.state()
        self._is_new = True

    def __call__(self) -> State:
        if self._is_new:  # the widget is being made of what was seen just now
            self._is_new = False
            return self._last
        snapshot = self._reader.read(self._part, snapshots.SHARED_S)
        self._last = snapshots.gone(self._last) if snapshot is None else snapshot.state()
        return self._last


def _saved(snapshot: MeshSnapshot) -> State:
    # What our extension shows: live while the kernel lives, the picture of then afterwards
    return {
        "v": snapshots.VERSION,
        "mesh": snapshot.part.mesh,
        "ranks": snapshot.ranks,
        "time": snapshot.taken.isoformat(timespec="seconds"),
        "snapshot": snapshot.state(),
    }
