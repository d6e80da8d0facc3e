"""Operations of torch on tensors of a mesh, seen from the controller.

Rule: an operation of torch on such tensors is a command to their ranks, and returns at once. What
PyTorch makes of it here (autograd, modules, optimizers, shapes) it makes by itself: this class is
what it finds below all that, where a tensor of the CPU would be computed. The hot path is
`dispatch`: it looks up what this operation makes of inputs of this kind, and adds a command.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, Self

import torch
from torch.utils import _pytree

from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.tensor.commands.borrows import check_all, watched
from monarch_nb.tensor.commands.metadata import TensorMeta, meta_of
from monarch_nb.tensor.commands.propagation import (
    LARGEST,
    Args,
    Known,
    Kwargs,
    Operation,
    Propagator,
    arguments,
    lifted,
    of_the_whole,
)
from monarch_nb.tensor.commands.templates import Definition, bits_of, numbers
from monarch_nb.tensor.engine.batches import DROPPED, Home, Ref
from monarch_nb.tensor.ranks.interpreter import own_copy

_make: Any = getattr(torch.Tensor, "_make_wrapper_subclass")  # noqa: B009  not in its types
_LIMIT: Final = 20_000
_ITEM: Final = torch.ops.aten._local_scalar_dense.default
_TRUE, _FALSE = object(), object()  # True and 1 are equal, and so would be what is known of them


_kinds: Final[set[type]] = set()
"""The subclasses of `MeshTensor`: on the hot path `in` is faster than torch's `isinstance`."""


class MeshTensor(torch.Tensor):
    """What is common to `Tensor` and to all that works below it: a kind, a ref, and operations of
    torch. Each engine has the class of its tensors."""

    __slots__ = ("_meta", "_ref")
    _meta: TensorMeta
    _ref: Ref

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as torch asks

    def __init_subclass__(cls) -> None:
        _kinds.add(cls)

    def __new__(cls, *_: object, **__: object) -> Self:
        raise TypeError(
            "a Tensor of a mesh is made by operations of torch: with mesh.activate(): ..."
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # narrower than torch's
        cls,
        func: Operation,
        types: object,
        args: Sequence[object] = (),
        kwargs: Kwargs | None = None,
    ) -> object:
        del types
        return dispatch(func, args, kwargs or {}, None, None)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # as torch has it
        del tensor_contents
        if self._ref is DROPPED:
            return f"Tensor({self._meta.words()}, dropped)"
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"Tensor({self._meta.words()} on {self._ref.home.words()}{grad})"

    @property
    def mesh(self) -> ProcMesh:
        """The mesh on whose ranks it is."""
        return self._ref.home.mesh()

    @property
    def data(self) -> torch.Tensor:
        """Without the graph, as of any tensor."""
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if not isinstance(new, MeshTensor):
            raise TypeError(
                f".data of a tensor of a mesh can be one of a mesh only, not {_kind(new)}"
            )
        torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined]  # no stub knows it
        self._meta, self._ref = new._meta, new._ref

    def full_tensor(self) -> torch.Tensor:
        raise NotImplementedError

    def tolist(self) -> NoReturn:
        _refuse(self, "tolist()")

    def numpy(self, *, force: bool = False) -> NoReturn:
        del force
        _refuse(self, "numpy()")

    def __deepcopy__(self, memo: dict[int, object]) -> MeshTensor:
        if id(self) in memo:
            found = memo[id(self)]
            assert isinstance(found, MeshTensor)
            return found
        if not self.is_leaf:
            raise RuntimeError(
                "only a tensor that is no result of a graph can be copied deeply: t.detach()"
            )
        with torch.no_grad():
            new = self.detach().clone()
        assert isinstance(new, MeshTensor)
        if self.requires_grad:
            new.requires_grad_()
        if getattr(self, "_is_param", False):
            vars(new)["_is_param"] = True
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        return new

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} lives on its ranks and cannot be pickled; fetch_shard(t).get() brings the "
            "values of one rank home"
        )


@functools.cache
def _device_here(kind: str) -> torch.device:
    # PyTorch's autograd has a queue for each GPU of this process, and none for "the current one"
    has_gpus = kind == "cuda" and torch.cuda.is_available()
    return torch.device(kind, 0) if has_gpus else torch.device(kind)


def tensor_of(meta: TensorMeta, ref: Ref) -> MeshTensor:
    found: MeshTensor = _make(
        ref.home.engine.kind,
        meta.sizes,
        strides=meta.strides,
        storage_offset=meta.offset,
        dtype=meta.dtype,
        device=_device_here(meta.device.type),
    )
    found._meta = meta
    found._ref = ref
    return found


def _refuse(tensor: MeshTensor, what: str) -> NoReturn:
    raise RuntimeError(
        f"{what}: the values of {tensor!r} are on the ranks. Bring those of one home first: "
        "fetch_shard(t).get(), or inspect(t, gpus=0)"
    )


def _kind(value: object) -> str:
    return f"a local tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


_known: Final[dict[tuple[object, ...], Any]] = {}
_UNKNOWN: Final = object()
_propagator: Final = Propagator(MeshTensor)


def dispatch(
    func: Operation, args: Args, kwargs: Kwargs, home: Home | None, mesh: object
) -> object:
    """Run an operation on the ranks of its inputs; of `home`, where it has none."""
    flat: list[object] = [func]
    tensors: list[Any] = []
    scalars: list[int] = []
    _flatten(func, args, flat, tensors, scalars)
    for name, value in kwargs.items():
        flat.append(name)
        _flatten(func, (value,), flat, tensors, scalars)
    refs: list[int] = []
    for each in tensors:
        if type(each) not in _kinds:
            return _with_locals(func, args, kwargs, tensors)
        ref = each._ref
        if ref.home is not home:
            if refs:
                _refuse_homes(func, tensors)
            home, mesh = ref.home, ref._mesh
        refs.append(ref.id)
    assert home is not None
    if watched:
        _check_loans(func, args, kwargs, tensors)
    if home.is_global and (instead := _of_the_whole(func)) is not None:
        return instead(*args, **kwargs)
    key = tuple(flat)
    try:
        known = _known.get(key, _UNKNOWN)
    except TypeError:  # a constant that has no hash: learnt each time
        known = _UNKNOWN
    if known is _UNKNOWN:
        known = _learn(key, func, args, kwargs)
    return _issue(known, func, args, kwargs, tensors, refs + scalars, home, mesh)


def _issue(
    known: Known | None,
    func: Operation,
    args: Args,
    kwargs: Kwargs,
    tensors: Sequence[torch.Tensor],
    numbers: list[int],
    home: Home,
    mesh: object,
) -> object:
    if known is None:
        return _propagator.answer(func, args, kwargs)
    definition, meta = known.definition, known.single
    if meta is not None:
        new = Ref(home, mesh)
        home.engine.issue(home, definition, [definition.number, *numbers, new.id], known.new)
        return tensor_of(meta, new)
    assert known.rebuild is not None
    made = [Ref(home, mesh) for _ in known.new]
    ids = [each.id for each in made]
    home.engine.issue(home, definition, [definition.number, *numbers, *ids], known.new)
    return known.rebuild([tensor_of(*each) for each in zip(known.new, made, strict=True)], tensors)


def _check_loans(
    func: Operation, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]
) -> None:
    changed = [leaf for leaf, is_write in _leaves(func, args, kwargs) if is_write]
    check_all(tensors, str(func), changed)


def _leaves(func: Operation, args: Args, kwargs: Kwargs) -> Iterator[tuple[object, bool]]:
    for argument, given in arguments(func, args, kwargs):
        for leaf in _pytree.tree_leaves(given):
            yield leaf, argument.is_write


def _of_the_whole(func: Operation) -> Callable[..., object] | None:
    return _item if func is _ITEM else of_the_whole(func)


def _item(tensor: MeshTensor) -> object:
    return tensor.full_tensor().item()


def _learn(key: tuple[object, ...], func: Operation, args: Args, kwargs: Kwargs) -> Known | None:
    found = _propagator.learn(func, args, kwargs)
    with contextlib.suppress(TypeError):
        if len(_known) > _LIMIT:
            _known.clear()
        _known[key] = found
    return found


def _flatten(
    func: Operation,
    values: Sequence[Any],
    key: list[object],
    tensors: list[torch.Tensor],
    scalars: list[int],
) -> None:
    for value in values:
        kind = type(value)
        if kind in _kinds:
            key.append(value._meta)
            tensors.append(value)
        elif kind is float:
            if lifted(func):
                key.append(float)
                scalars.append(bits_of(value))
            else:
                key.append(value.hex())
        elif kind is int:
            if lifted(func) and -LARGEST < value < LARGEST:
                key.append(int)
                scalars.append(value)
            else:
                key.append(value)
        elif kind is bool:
            key.append(_TRUE if value else _FALSE)
        elif kind is list or kind is tuple:
            key.append(len(value))
            key.append(kind)
            _flatten(func, value, key, tensors, scalars)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        else:
            key.append(value)


# ------------------------------------------------------------------------------------ local tensors


def _with_locals(
    func: Operation, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]
) -> object:
    home = next(each._ref for each in tensors if isinstance(each, MeshTensor))
    if func._schema.is_mutable:
        _check_written(func, args, kwargs)

    def moved(value: object) -> object:
        if isinstance(value, torch.Tensor) and not isinstance(value, MeshTensor):
            return put(value, home.home, home._mesh)
        return value

    args, kwargs = _pytree.tree_map(moved, (tuple(args), kwargs))
    return dispatch(func, args, kwargs, None, None)


def _check_written(func: Operation, args: Args, kwargs: Kwargs) -> None:
    for leaf, is_write in _leaves(func, args, kwargs):
        if is_write and isinstance(leaf, torch.Tensor) and not isinstance(leaf, MeshTensor):
            raise ValueError(  # a TypeError would become "unsupported operand"
                f"{func} would change {_kind(leaf)}, and its result is on the ranks. Make that "
                "tensor on the mesh too (inside `with mesh.activate():`), or fetch the other"
            )


def put(value: torch.Tensor, home: Home, mesh: object) -> MeshTensor:
    """Put a local tensor on every rank of a mesh: each has a copy."""
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(  # a TypeError would become "unsupported operand"
            f"{_kind(value)} requires a gradient, which would not come back from the ranks. Make "
            "it on the mesh, inside `with mesh.activate():`"
        )
    own = as_it_is(value)
    target: Callable[..., torch.Tensor] = own_copy
    given: tuple[object, ...] = (own.cpu(), own.device.type)
    if home.part is not None:
        target, given = home.part, (*given, home.shape, (None,) * len(home.shape.labels))
    ref = Ref(home, mesh)
    meta = meta_of(own)
    definition = Definition(next(numbers), target, given, {}, 0, 0, (True,), once=True)
    home.engine.issue(home, definition, [definition.number, ref.id], (meta,))
    return tensor_of(meta, ref)


def as_it_is(value: torch.Tensor) -> torch.Tensor:
    """Copy it, contiguous: it is sent later, and its owner may change it before."""
    return value.detach().clone(memory_format=torch.contiguous_format)


def _refuse_homes(func: Operation, tensors: Sequence[torch.Tensor]) -> NoReturn:
    homes = {each._ref.home.words(): 0 for each in tensors if isinstance(each, MeshTensor)}
    raise ValueError(
        f"{func} takes tensors of one mesh and stream, not of {' and '.join(homes)}. Move one "
        "over: t.to_mesh(mesh), t.slice_mesh(...) to a part of its mesh, or stream.borrow(t)"
    )
