"""Which mesh torch makes tensors on: `with mesh.activate():`, per thread.

Rule: only what makes a tensor out of nothing is sent to the mesh that is active. Operations on
tensors of a mesh go to theirs, active or not; those on local tensors alone stay here.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.process.context import current_instance
from monarch_nb.process.instance import Instance
from monarch_nb.tensor.commands.metadata import TensorMeta
from monarch_nb.tensor.commands.propagation import Operation
from monarch_nb.tensor.commands.templates import MAIN
from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Engine, Home
from monarch_nb.tensor.engine.seeding import follow
from monarch_nb.tensor.engine.tensors import MeshTensor, dispatch, put
from monarch_nb.tensor.meshes.streams import active_name
from monarch_nb.tensor.ranks.interpreter import here
from monarch_nb.tensor.tensor_class import Tensor

_LIFT: Final = torch.ops.aten.lift_fresh.default
_REBUILDS: Final = torch._utils._rebuild_tensor.__code__
"""Makes what is unpickled or read from a file, which is local."""


class _Stack(threading.local):
    """What is active in a thread, the last one first to count. None: no mesh, on purpose."""

    def __init__(self) -> None:
        self.meshes: list[_Activation] = []


stack: Final = _Stack()
"""Of this thread."""


class _Mode(TorchDispatchMode):
    def __init__(self, mesh: ProcMesh | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._mesh = mesh

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch's way to say that no part of the compiler need be loaded for it, a second
        return False

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if Tensor in types:
            return dispatch(func, args, kwargs, None, None)
        mesh = self._mesh
        if mesh is None or stack.meshes[-1]._mode is not self:  # it comes from one inside
            return func(*args, **kwargs)
        if sys._getframe(1).f_code is _REBUILDS:
            return func(*args, **kwargs)
        if func is _LIFT and args[0].dim():
            return put(args[0], home_of(mesh), mesh)
        if types or _has_tensor(args) or not _makes_tensors(func):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise ValueError(
                f"{func} was given a generator of the controller; ranks have their own, which "
                "torch.manual_seed(n) seeds too"
            )
        return dispatch(func, args, kwargs, home_of(mesh), mesh)


def _has_tensor(values: object) -> bool:
    return any(isinstance(each, torch.Tensor) for each in _pytree.tree_leaves(values))


def _makes_tensors(func: Operation) -> bool:
    returned = getattr(getattr(func, "_schema", None), "returns", ())
    return any("Tensor" in str(each.type) for each in returned)


class _StandIns:
    """The meshes that an actor finds in the place of others, which are simulated; by the number of
    those."""

    def __init__(self, make: Callable[[ProcMesh], ProcMesh]) -> None:
        self.make = make
        self.made: dict[int, ProcMesh] = {}


_stand_ins: Final[weakref.WeakKeyDictionary[Instance, _StandIns]] = weakref.WeakKeyDictionary()


def stand_in_for_meshes_of(actor: Instance, make: Callable[[ProcMesh], ProcMesh]) -> None:
    """Have this actor activate `make(mesh)` where it says `mesh`."""
    _stand_ins[actor] = _StandIns(make)


def _meant(mesh: ProcMesh) -> ProcMesh:
    # nothing is asked of a process that has no such actor: it may have no runtime either
    if not _stand_ins or (found := _stand_ins.get(current_instance())) is None:
        return mesh
    if any(mesh._state is each._state for each in found.made.values()):
        return mesh
    number = mesh._state.number
    if number not in found.made:
        found.made[number] = found.make(ProcMesh(mesh._state, mesh._state.shape))
    instead = found.made[number]
    return instead if mesh._shape == mesh._state.shape else ProcMesh(instead._state, mesh._shape)


class _Activation(contextlib.AbstractContextManager[ProcMesh | None]):
    def __init__(self, mesh: ProcMesh | None) -> None:
        self.mesh = mesh
        self._modes: list[contextlib.AbstractContextManager[object]] = [_Mode(mesh)]
        if mesh is not None:
            engine = Engine.of(mesh._state, MAIN, Tensor)
            follow(engine)
            self._modes += engine.modes()
        self._mode = self._modes[0]
        for each in self._modes:
            each.__enter__()
        stack.meshes.append(self)

    def __enter__(self) -> ProcMesh | None:
        return self.mesh

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self not in stack.meshes:
            return  # deactivated meanwhile
        if stack.meshes[-1] is not self:
            raise RuntimeError(
                "another mesh was activated inside, and is active still: leave it first"
            )
        stack.meshes.pop()
        for each in reversed(self._modes):
            each.__exit__(kind, error, trace)
        if self.mesh is not None:
            home_of(self.mesh).engine.flush()


def activate(mesh: ProcMesh) -> contextlib.AbstractContextManager[ProcMesh | None]:
    """Do `ProcMesh.activate`."""
    return _Activation(_meant(mesh))


def deactivate(mesh: ProcMesh) -> None:
    """Do `ProcMesh.deactivate`."""
    for each in reversed(stack.meshes):
        if each.mesh is not None and home_of(each.mesh) is home_of(mesh):
            each.__exit__()
            return


class NoMesh:
    """`with no_mesh.activate():` torch makes local tensors, whatever is active outside."""

    def activate(self) -> contextlib.AbstractContextManager[ProcMesh | None]:
        """Let no mesh be active until the block ends."""
        return _Activation(None)


no_mesh: Final = NoMesh()


def get_active_mesh() -> ProcMesh:
    """Return the mesh that is active in this thread. Raises `ValueError` if none is."""
    if not stack.meshes or (found := stack.meshes[-1].mesh) is None:
        raise ValueError("no device mesh is active: with mesh.activate(): ...")
    return found


@contextlib.contextmanager
def coalescing() -> Iterator[None]:
    """Have what is issued in the block on its way to the ranks when it ends.

    A name of Monarch's tensor engine, where it saves messages; here commands are batched anyway.

    Example:
        >>> with coalescing():                             # doctest: +SKIP
        ...     y = x + x
    """
    try:
        yield
    finally:
        for each in stack.meshes:
            if each.mesh is not None:
                home_of(each.mesh).engine.flush()


def home_of(mesh: ProcMesh) -> Home:
    """Return where operations on a mesh go: its ranks, and the stream that is active."""
    mesh = _meant(mesh)
    return Engine.of(mesh._state, active_name(), Tensor).home(mesh._shape)


def rank_tensor(mesh: ProcMesh, dim: str | Sequence[str]) -> MeshTensor:
    """Do `ProcMesh.rank_tensor`."""
    dims = (dim,) if isinstance(dim, str) else tuple(dim)
    sizes = mesh.sizes
    for name in dims:
        if name not in sizes:
            raise KeyError(f"{mesh!r} does not have dimension {name!r}")
    found: dict[int, int] = {}
    for rank in mesh.ranks:
        coordinates = mesh._shape.coordinates(rank)
        number = 0
        for name in dims:
            number = number * sizes[name] + coordinates[name]
        found[rank] = number
    [tensor] = functions.run(
        _coordinate, (found,), inputs=[], home=home_of(mesh), mesh=mesh, new=[_NUMBER]
    )
    return tensor


def holds_tensors(values: object) -> bool:
    """Return whether there are tensors of a mesh among some values."""
    try:
        return bool(functions.tensors_in(values))
    except RecursionError:  # nested so deeply that they cannot be sent either, which is said there
        return False


_NUMBER: Final = TensorMeta((), (), torch.int64, torch.device("cpu"), 0)


def _coordinate(by_rank: dict[int, int]) -> torch.Tensor:
    return torch.tensor(by_rank[here.worker.rank])
