"""The values of last expressions that ranks keep for the handle of a cell: fetched once, when
somebody looks; dropped with the handle.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from monarch_nb.core.shape.extent import Shape, Slice
from monarch_nb.core.wire.messages.cells import DropResult
from monarch_nb.meshes import variables

if TYPE_CHECKING:
    from monarch_nb.core.shape.values import ValueMesh
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.futures.future import Future
    from monarch_nb.process.process import Proc


class Results:
    """What a cell that answered to port `reply` has left on its ranks."""

    def __init__(self, proc: Proc, mesh: ProcMesh, reply: int) -> None:
        self._proc = proc
        self._mesh = mesh
        self._reply = reply
        self._all: Future[ValueMesh[Any]] | None = None
        self._dropping = weakref.finalize(self, _drop_later, proc, tuple(mesh._processes()), reply)
        self._dropping.atexit = False

    def fetch(self) -> Future[ValueMesh[Any]]:
        """The values of all ranks, with the shape of the mesh; unpickled when looked at."""
        found = self._all
        if found is None or _has_failed(found):
            found = self._all = variables.fetch_result(self._mesh._part, self._reply)
            found.add_done_callback(self._fetched)
        return found

    def value(self, rank: int) -> Any:
        """The value of one rank of the mesh. Waits for it."""
        if self._all is not None and not _has_failed(self._all):
            return self._all.get()[self._mesh.ranks.index(rank)]
        alone = self._mesh._new_with_shape(Shape([], Slice(offset=rank, sizes=[], strides=[])))
        return variables.fetch_result(alone._part, self._reply).get().item()

    def _fetched(self, answered: Future[Any]) -> None:
        # All values are here: the ranks need not keep them. Inbox thread.
        if not _has_failed(answered) and self._dropping.detach():
            _drop(self._proc, self._mesh._processes(), self._reply)


def _has_failed(future: Future[Any]) -> bool:
    return future.done() and future.exception() is not None


def _drop_later(proc: Proc, processes: Iterable[int], reply: int) -> None:
    # runs inside a garbage collection: nothing here may take a lock that its victim holds
    if not proc.closed:
        threading.Thread(
            target=_drop, args=(proc, processes, reply), name="monarch-garbage", daemon=True
        ).start()


def _drop(proc: Proc, processes: Iterable[int], reply: int) -> None:
    for process in processes:
        proc.control(process, DropResult(reply))
