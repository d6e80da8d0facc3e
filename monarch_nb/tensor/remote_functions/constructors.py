"""Tensors of a mesh as arguments of an actor's constructor: each actor gets what its rank has.

Rule: where the arguments are unpickled, in the actor's thread, the stream of the same process is
asked. It answers when the rank has come so far, with the tensor itself or with why there is none.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

from monarch_nb.meshes.actor_mesh import ActorMesh, restore_actors, spawn_actors
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.tensor.commands.borrows import check_all, watched
from monarch_nb.tensor.engine.batches import Home
from monarch_nb.tensor.engine.functions import tensors_in
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.moving.fetching import common_home
from monarch_nb.tensor.ranks.interpreter import Cause, error_of
from monarch_nb.tensor.ranks.tensor_worker import FAILED
from monarch_nb.tensor.remote_functions.local_calls import ask_here


class _OnItsRank:
    """A tensor of a mesh on its way to the ranks: what a rank has of it comes out there."""

    def __init__(self, tensor: MeshTensor) -> None:
        self._tensor: MeshTensor | None = tensor  # or the ranks would free it
        workers = tensor._ref.home.engine.workers
        processes = list(workers.processes)
        whole = workers.number, workers.name, workers.cls, workers.shape, processes, None
        self._place = whole, tensor._ref.id

    def let_go(self) -> None:
        self._tensor = None

    def __reduce__(self) -> tuple[object, ...]:
        return _lent, self._place


def _lent(whole: tuple[Any, ...], ref: int) -> object:
    how, found = _pair(ask_here(restore_actors(whole, whole[3]), "lend", (ref,), {}))
    if how == FAILED:
        raise error_of(Cause(*found))
    return found


def _pair(answer: Any) -> tuple[str, Any]:
    how, found = answer
    return how, found


def spawn(
    mesh: ProcMesh, name: str, cls: type, args: tuple[object, ...], kwargs: dict[str, Any]
) -> ActorMesh[Any]:
    """Do `ProcMesh.spawn` where there are tensors of a mesh among the arguments.

    Raises `ValueError` for those of another mesh, or of fewer ranks than it is spawned on.
    """
    tensors = tensors_in((args, kwargs))
    home = common_home(tensors, name)
    _check_place(home, mesh, name)
    if watched:
        check_all(tensors, name)
    lent: list[_OnItsRank] = []

    def lend(leaf: object) -> object:
        if not isinstance(leaf, MeshTensor):
            return leaf
        lent.append(_OnItsRank(leaf))
        return lent[-1]

    given, named = _pytree.tree_map(lend, (args, kwargs))
    home.engine.flush()  # so that the stream has it before the actor asks
    made = spawn_actors(mesh._part, name, cls, given, named)

    def constructed(_: object) -> None:
        for each in lent:
            each.let_go()

    made.initialized.add_done_callback(constructed)
    return made


def _check_place(home: Home, mesh: ProcMesh, name: str) -> None:
    here = set(mesh.ranks) <= set(home.ranks)
    if home.engine.procs.number != mesh._state.number or not here:
        raise ValueError(
            f"{name} is spawned on ranks where its tensors are not: they are on {home.words()}, "
            f"and it on {mesh!r}. Spawn it there, or bring them: t.to_mesh(...)"
        )
