"""`reduce`: one value out of those of all ranks along axes of their mesh.

Rules: the shape of the result is known here; which ranks work together each finds out by itself
from the shape of the mesh. A rank whose input has failed takes part all the same, with zeros, and
says so: the others must not wait for it, and nobody may take what comes out for a result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, Literal, TypeVar, get_args

import torch
import torch.distributed as dist

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.shape.extent import Shape
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.process_groups import Membership, neighbours
from monarch_nb.process import current
from monarch_nb.tensor.commands.metadata import TensorMeta, fake_of, meta_of, propagate
from monarch_nb.tensor.commands.templates import Input
from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Home
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.moving.between_meshes import refuse_grad, refuse_whole, slice_mesh, to_mesh
from monarch_nb.tensor.ranks.interpreter import Failed, FailedInput, here, takes_failed

T = TypeVar("T")
Reduction = Literal["stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor"]

_OPS: Final = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def reduce(
    obj: T,
    dims: str | Sequence[str] = (),
    reduction: Reduction = "sum",
    scatter: bool = False,
    mesh: ProcMesh | None = None,
    out: torch.Tensor | None = None,
) -> T:
    """Combine the tensors of the ranks along axes of their mesh; every rank has the result.

    Args:
        obj: a tensor of a mesh, or lists, tuples and dicts with such.
        dims: one or several axes; none: all.
        reduction: how; "stack" makes a new first dimension, of the size of the (one) axis.
        scatter: rank i along the (one) axis gets part i of the result, along its first dimension,
            which must be of the size of the axis, and goes away.
        mesh: where the result is wanted, with or without the axes: a slice of the mesh, for
            instance. None: on all ranks that had a part in it.
        out: a tensor of the result's shape and dtype, which is changed.

    Raises:
        KeyError: for an axis that the mesh has not.
        ValueError: for an axis twice, an unknown reduction, several axes with "stack" or `scatter`,
            an `out` of another shape.
        TypeError: where `scatter` does not divide, bitwise reductions of floats, and for tensors
            that require a gradient.

    Example:
        >>> loss = reduce(loss, "gpus", "avg")             # doctest: +SKIP

    Names and meaning are Monarch's.
    """
    return functions.on_each(
        obj, lambda tensor: _reduced(tensor, dims, reduction, scatter, mesh, out, in_place=False)
    )


def reduce_(
    obj: T,
    dims: str | Sequence[str] = (),
    reduction: Reduction = "sum",
    scatter: bool = False,
    mesh: ProcMesh | None = None,
) -> T:
    """Reduce as `reduce`, in place: the tensors are changed, and returned.

    Raises `ValueError` where the result has another shape.

    Example:
        >>> for p in model.parameters(): reduce_(p.grad, "gpus", "avg")     # doctest: +SKIP
    """
    return functions.on_each(
        obj, lambda tensor: _reduced(tensor, dims, reduction, scatter, mesh, None, in_place=True)
    )


def _reduced(
    tensor: MeshTensor,
    dims: str | Sequence[str],
    reduction: str,
    scatter: bool,
    mesh: ProcMesh | None,
    out: torch.Tensor | None,
    *,
    in_place: bool,
) -> MeshTensor:
    home = tensor._ref.home
    axes = _checked_axes(home, dims, reduction, scatter)
    refuse_whole(tensor, "reduce")
    refuse_grad(tensor, "reduce")
    meta = tensor._meta
    size = home.sizes[axes[0]] if reduction == "stack" or scatter else 0
    promised = _promised(meta, reduction, scatter, size)
    wanted = tensor if in_place else out
    target = None if wanted is None else _checked_target(wanted, promised, home, in_place)
    key = (_reduce, tuple(home.shape.labels), tuple(home.shape.ndslice.sizes), tuple(home.ranks))
    kind = (meta.sizes, meta.dtype, meta.device.type)
    args: tuple[object, ...] = (Input(0), home.shape, axes, reduction, scatter, *kind)
    inputs = [tensor]
    if target is not None:
        args, inputs = (*args, Input(1)), [tensor, target]
    made = functions.run(
        _reduce,
        args,
        inputs=inputs,
        home=home,
        mesh=tensor._ref._mesh,
        new=[] if target is not None else [promised],
        writes=() if target is None else (1,),
        name=f"reduce({', '.join(axes)}, {reduction})",
        key=(*key, axes, reduction, scatter, meta, target is None),
        moves=_moved_bytes(meta, reduction, scatter, math.prod(home.sizes[axis] for axis in axes)),
    )
    found = made[0] if target is None else target
    return found if mesh is None else _placed(found, axes, mesh)


def _moved_bytes(meta: TensorMeta, reduction: str, scatter: bool, ranks: int) -> int:
    # what algorithms send that are the best for large tensors
    if reduction == "stack":
        return meta.nbytes * (ranks - 1) // (ranks if scatter else 1)
    return 2 * meta.nbytes * (ranks - 1) // ranks  # a part is scattered from an all_reduce


def _placed(tensor: MeshTensor, axes: tuple[str, ...], mesh: ProcMesh) -> MeshTensor:
    gone = {axis: 0 for axis in axes if axis not in mesh.sizes}
    return to_mesh(slice_mesh(tensor, **gone) if gone else tensor, mesh)


def _checked_axes(
    home: Home, dims: str | Sequence[str], reduction: str, scatter: bool
) -> tuple[str, ...]:
    sizes = home.sizes
    axes = (dims,) if isinstance(dims, str) else tuple(dims) or tuple(sizes)
    for axis in axes:
        if axis not in sizes:
            raise KeyError(f"dim {axis} not found in {home.words()}")
    if len(set(axes)) < len(axes):
        raise ValueError(f"reducing the same dimension twice: {axes}")
    if reduction not in get_args(Reduction):
        known = ", ".join(get_args(Reduction))
        raise ValueError(f"reduction {reduction!r} not supported, reductions are {known}")
    if len(axes) != 1 and (reduction == "stack" or scatter):
        raise ValueError(
            f"reduction {reduction!r} with scatter={scatter} is not valid for multiple dimensions: "
            f"{axes}"
        )
    return axes


def _checked_target(target: object, promised: TensorMeta, home: Home, in_place: bool) -> MeshTensor:
    if not isinstance(target, MeshTensor) or target._ref.home is not home:
        raise ValueError(f"out of reduce is a tensor of {home.words()}, not {target!r}")
    meta = target._meta
    if (meta.sizes, meta.dtype) != (promised.sizes, promised.dtype):
        what = "reduce_ is not valid: its result" if in_place else "out is not valid: the result"
        raise ValueError(f"{what} would be {promised.words()}, and the tensor is {meta.words()}")
    return target


@functools.lru_cache(maxsize=4096)
def _promised(meta: TensorMeta, reduction: str, scatter: bool, size: int) -> TensorMeta:
    given = fake_of(meta), reduction, scatter, size
    return meta_of(propagate(_result, given, {}, f"reduce({reduction!r})"))


def _result(tensor: torch.Tensor, reduction: str, scatter: bool, size: int) -> torch.Tensor:
    floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    if reduction in {"band", "bor", "bxor"} and floating:
        raise TypeError(f"reduction {reduction!r} takes integers or bools, not {tensor.dtype}")
    if reduction == "avg" and not floating:
        raise TypeError(f"reduction 'avg' takes floats, not {tensor.dtype}: t.float()")
    if scatter and (tensor.dim() == 0 or tensor.size(0) != size):
        raise TypeError(
            "when scattering results the outer most dimension of the tensor with sizes "
            f"{list(tensor.shape)} must match the size of the axis, {size}"
        )
    if reduction == "stack":
        shape = tuple(tensor.shape) if scatter else (size, *tensor.shape)
        return tensor.new_empty(shape)
    return tensor.new_empty(tensor.shape[1:] if scatter else tensor.shape)


# ------------------------------------------------------------------------------------- on the ranks


@takes_failed
def _reduce(
    value: torch.Tensor | Failed,
    shape: Shape,
    axes: tuple[str, ...],
    reduction: str,
    scatter: bool,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    target: torch.Tensor | Failed | None = None,
) -> torch.Tensor | None:
    members = neighbours(shape, axes, here.worker.rank)
    failed = value if isinstance(value, Failed) else target if isinstance(target, Failed) else None
    given = (
        value.detach().contiguous()
        if isinstance(value, torch.Tensor)
        else torch.zeros(sizes, dtype=dtype, device=device)
    )
    if len(members) == 1:
        result = _alone(given, reduction, scatter)
    else:
        result = _together(given, members, reduction, scatter, failed is not None)
    if failed is not None:
        raise FailedInput(failed.cause)
    if target is None:
        return result
    assert isinstance(target, torch.Tensor)
    target.copy_(result)
    return None


def _alone(given: torch.Tensor, reduction: str, scatter: bool) -> torch.Tensor:
    if reduction == "stack":
        return given.clone() if scatter else given.clone()[None]
    return given[0].clone() if scatter else given.clone()


def _together(
    given: torch.Tensor, members: tuple[int, ...], reduction: str, scatter: bool, failed: bool
) -> torch.Tensor:
    group = current.part(Membership).group_of(members, here.worker.owner, None)
    position = members.index(here.worker.rank)
    word = torch.tensor([position + 1 if failed else 0], dtype=torch.int32, device=given.device)
    told = dist.all_reduce(word, dist.ReduceOp.MAX, group, async_op=True)
    result = _exchange(given, group, len(members), position, reduction, scatter)
    assert told is not None
    told.wait()
    if not failed and (one := int(word)):
        raise RuntimeError(
            f"{rank_words([members[one - 1]])} had nothing to give: it failed before"
        )
    return result


def _exchange(
    given: torch.Tensor,
    group: dist.ProcessGroup,
    size: int,
    position: int,
    reduction: str,
    scatter: bool,
) -> torch.Tensor:
    if reduction == "stack":
        if scatter:
            result = torch.empty_like(given)
            dist.all_to_all_single(result, given, group=group)
            return result
        result = given.new_empty((size, *given.shape))
        dist.all_gather(list(result.unbind()), given, group)
        return result
    work = given.clone() if given.dtype is not torch.bool else given.to(torch.uint8)
    dist.all_reduce(work, _OPS[reduction], group)
    if reduction == "avg":
        work /= size
    if scatter:
        work = work[position].clone()
    return work.to(given.dtype)
