"""Values of tensors of a mesh, brought home from one of its ranks.

Rule: every rank of the mesh is asked, and answers when it has come so far: one sends the values,
the others say whether they have theirs. So a failure on any rank is told of where a value is asked
for, once, with the line that issued what has failed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from torch.utils import _pytree

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.core.shape.values import ValueMesh
from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import Message
from monarch_nb.errors import RemoteException
from monarch_nb.process import remote_errors
from monarch_nb.process.futures.calls import GatherCall
from monarch_nb.process.futures.future import Future, completed, make
from monarch_nb.process.process import Wait
from monarch_nb.tensor.commands.borrows import check_all, watched
from monarch_nb.tensor.commands.call_sites import call_sites
from monarch_nb.tensor.engine.batches import Home, Ref
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.ranks.interpreter import Cause
from monarch_nb.tensor.ranks.tensor_worker import FAILED

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")
Answers = list[list[Any]]
"""What each rank has sent, where it was wanted."""
Rebuild = Callable[[Answers], object]


def part(value: object) -> object:
    """Return what a rank has of a tensor before it is fetched: of a distributed one its part."""
    return value.to_local() if _is_distributed(value) else value


def whole(value: object) -> object:
    """Return the whole of it: parts are put together."""
    return value.full_tensor() if _is_distributed(value) else value


def _is_distributed(value: object) -> TypeGuard[DTensor]:
    # Asked without loading it, which takes seconds: who has parts of tensors has loaded it.
    # Another thread may be at it, then the module is there and the class is not yet
    return isinstance(value, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


class FetchCall(GatherCall):
    __slots__ = ("_rebuild",)
    interrupts_what_runs = True
    _rebuild: Rebuild
    """Makes the value of what each rank has sent (None, where nothing was wanted)."""

    @classmethod
    def rebuilding(cls, rebuild: Rebuild) -> FetchCall:
        call = make(cls)
        call._rebuild = rebuild
        return call

    def wait_for_people(self) -> Wait | None:
        found = super().wait_for_people()
        return None if found is None else found._replace(what="fetch")

    def _decode(self, content: Message | None) -> Any:
        if content is not None:
            raise self._error_of(content)
        answers = [self._proc.decode(each) for each in self._answers if each is not None]
        failed = [Cause(*found) for how, found in answers if how == FAILED]
        if failed:
            raise _error(failed)
        return self._rebuild([values for _, values in answers])


def _error(failed: Sequence[Cause]) -> RemoteException:
    # One error, of the command that was issued first; of the ranks where it has failed
    first = min(failed, key=lambda cause: (cause.number, cause.at))
    where = sorted({each.rank for each in failed if each[:2] == first[:2]})
    site = call_sites.of(first.site)
    _, _, record, original = pickling.loads(first.error)
    stored = ErrorRecord.from_json(record)
    error = RemoteException(
        remote_errors.revive(original, record),
        f"{first.what} failed on {rank_words(where)} of {first.mesh}. It was issued in "
        f"{site.words()}",
        rank=where[0],
        traceback_text=remote_errors.render(stored),
    )
    error.record = stored
    error.operation, error.ranks = first.what, tuple(where)
    error.controller_frames = ((site.filename, site.lineno, site.name),)
    return error


def fetch_shard(obj: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> Future[T]:
    """Bring home the values that one rank has, as tensors of the CPU.

    Args:
        obj: a tensor of a mesh, or lists, tuples and dicts with such; all of one mesh.
        shard: the coordinates of the rank on the axes of the mesh; of each axis 0, if none are
            given. They may be given by name too. Of a tensor that is distributed over the mesh,
            coordinates mean the part that this rank has; without any it is the whole.

    Returns:
        A future of the same as `obj`, with local tensors in it.

    Raises:
        KeyError: for an axis that the mesh has not.
        IndexError: for a coordinate beyond its size.
        ValueError: for tensors of several meshes, or if some axes are given and others are not.
        RemoteException: by the future, when what made the tensor has failed on any rank.

    Example:
        >>> fetch_shard(loss, gpus=3).get()                # doctest: +SKIP
        tensor(0.25)
    """
    wanted = {**(shard or {}), **coordinates}
    leaves, spec = _pytree.tree_flatten(obj)
    tensors = [each for each in leaves if isinstance(each, MeshTensor)]
    if not tensors:
        return cast("Future[T]", completed(obj))
    home = common_home(tensors, "fetch_shard")
    if watched:
        check_all(tensors, "fetch_shard")
    collect = whole if home.is_global and not wanted else part
    index = index_of(home, wanted)

    def rebuild(answers: Answers) -> object:
        found = iter(answers[index])
        return _pytree.tree_unflatten(
            [next(found) if isinstance(each, MeshTensor) else each for each in leaves], spec
        )

    return cast("Future[T]", _begun(home, [each._ref for each in tensors], index, collect, rebuild))


def common_home(tensors: list[MeshTensor], what: str) -> Home:
    """Return the home of all of them. Raises `ValueError` for several."""
    homes = list(dict.fromkeys(each._ref.home for each in tensors))
    if len(homes) > 1:
        words = " and ".join(each.words() for each in homes)
        raise ValueError(f"{what} takes tensors of one mesh and stream, not of {words}")
    return homes[0]


def index_of(home: Home, coordinates: Mapping[str, int]) -> int:
    """Return which of the ranks of a home has these coordinates, counted in its mesh."""
    sizes = home.sizes
    if extra := [name for name in coordinates if name not in sizes]:
        raise KeyError(f"{home.words()} has no axis {extra[0]!r}")
    if coordinates and (missing := [name for name in sizes if name not in coordinates]):
        raise ValueError(f"which rank on axis {missing[0]!r}? Give each of {list(sizes)}, or none")
    found = 0
    for name, size in sizes.items():
        coordinate = coordinates.get(name, 0)
        if not 0 <= coordinate < size:
            raise IndexError(f"{name}={coordinate}: the mesh has {name} 0 to {size - 1}")
        found = found * size + coordinate
    return found


def fetch_object(ref: Ref, chosen: int) -> Future[Any]:
    """Fetch what a ref stands for on one rank, whatever it is; tensors in it come to the CPU."""
    return _begun(ref.home, [ref], chosen, part, lambda answers: answers[chosen][0])


def fetch_objects(ref: Ref) -> Future[ValueMesh[Any]]:
    """Fetch the same of every rank."""
    shape = ref.home.target("fetch").shape

    def rebuild(answers: Answers) -> ValueMesh[Any]:
        return ValueMesh(shape, [each[0] for each in answers])

    return _begun(ref.home, [ref], None, part, rebuild)


def _begun(
    home: Home,
    refs: Sequence[Ref],
    chosen: int | None,
    collect: Callable[[object], object],
    rebuild: Rebuild,
) -> FetchCall:
    numbers = [each.id for each in refs]

    def contents(index: int) -> tuple[object, ...]:
        return numbers, chosen is None or index == chosen, collect

    return home.engine.ask(home.target("fetch"), FetchCall.rebuilding(rebuild), contents)


def inspect(obj: T, shard: Mapping[str, int] | None = None, **coordinates: int) -> T:
    """Do `fetch_shard(...).get()`: waits.

    Example:
        >>> inspect(x, gpus=1)                             # doctest: +SKIP
    """
    return fetch_shard(obj, shard, **coordinates).get()


def show(obj: Any, shard: Mapping[str, int] | None = None, **coordinates: int) -> Any:
    """Bring tensors home and draw them: with torchshow, where it is installed; in a notebook they
    are displayed as they print.

    Returns what torchshow returns, else the tensors.
    """
    values = inspect(obj, shard, **coordinates)
    try:
        draw = importlib.import_module("torchshow").show
    except ImportError:
        return values
    return draw(values)
