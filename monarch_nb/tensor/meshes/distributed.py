"""One tensor, cut in parts over the ranks of a mesh, that computes from here as if it were local.

Rules: ranks hold PyTorch's `DTensor`s, so which operation needs which part is PyTorch's to decide;
the controller knows the shape of the whole. Commands, fetches and errors are those of all tensors
of a mesh. A gradient has the parts that its parameter has, before an optimizer sees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, TypeVar

import torch

from monarch_nb.meshes.proc_mesh import ProcMesh, this_host
from monarch_nb.tensor.commands.metadata import meta_of
from monarch_nb.tensor.commands.templates import Input
from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.seeding import follow
from monarch_nb.tensor.engine.tensors import as_it_is
from monarch_nb.tensor.meshes.active import home_of
from monarch_nb.tensor.ranks import parts
from monarch_nb.tensor.tensor_class import Tensor

M = TypeVar("M", bound=torch.nn.Module)
Spec = Sequence[str | Sequence[str] | None]
"""For each dimension of a tensor, the axis (or axes) of the mesh along which it is cut, or None."""

MODEL_AXES: Final = ("model_parallel", "tensor_parallel", "model", "tensor", "tp", "mp")


def Mesh(  # noqa: N802  it reads as the class of the documents that it comes from
    shape: Sequence[int], mesh_dim_names: Sequence[str], name: str | None = None
) -> ProcMesh:
    """Start processes on this host on named axes: `this_host().spawn_procs` in one line.

    Args:
        shape: how many along each axis.
        mesh_dim_names: the axes.

    Raises `ValueError` where these do not match.

    Example:
        >>> mesh = Mesh(shape=(4, 2), mesh_dim_names=("dp", "tp"))     # doctest: +SKIP
        >>> mesh.size()                                    # doctest: +SKIP
        8
    """
    if len(shape) != len(mesh_dim_names):
        raise ValueError(f"a mesh of shape {tuple(shape)} with the axes {tuple(mesh_dim_names)}")
    if len(set(mesh_dim_names)) < len(mesh_dim_names):
        raise ValueError(f"an axis twice: {tuple(mesh_dim_names)}")
    per_host = dict(zip(mesh_dim_names, shape, strict=True))
    return this_host().spawn_procs(per_host=per_host, name=name)


def distribute(tensor: torch.Tensor, mesh: ProcMesh, sharding_spec: Spec | None = None) -> Tensor:
    """Cut a local tensor over the ranks of a mesh; operations on the result are on the whole.

    Args:
        sharding_spec: for each dimension the axis of the mesh along which it is cut, several axes,
            or None. No spec: each rank has a copy.

    Raises `ValueError` for a spec that names no axis of the mesh, or one twice, has more entries
    than the tensor dimensions, or where a size does not divide.

    Example:
        >>> dt = distribute(torch.randn(64, 64), mesh, ["dp", None])   # doctest: +SKIP
        >>> (dt @ dt.T).sum().item()                                   # doctest: +SKIP
    """
    if isinstance(tensor, Tensor):
        raise TypeError(f"{tensor!r} is on a mesh already; distribute takes a local tensor")
    if tensor.requires_grad and not tensor.is_leaf:
        raise TypeError("distribute takes no part in a graph: give it t.detach()")
    engine = home_of(mesh).engine
    follow(engine)
    home = engine.home(mesh._shape, parts.part)
    own = as_it_is(tensor)
    cuts = _cuts(tensor.shape, home.sizes, sharding_spec)
    given = (own.cpu(), own.device.type, home.shape, cuts)
    [found] = functions.run(parts.part, given, inputs=[], home=home, mesh=mesh, new=[meta_of(own)])
    return found.requires_grad_() if tensor.requires_grad else found  # type: ignore[return-value]  # the same


def _cuts(
    shape: Sequence[int], sizes: Mapping[str, int], spec: Spec | None
) -> tuple[int | None, ...]:
    entries = () if spec is None else tuple(spec)
    if isinstance(spec, str) or len(entries) > len(shape):
        raise ValueError(
            f"a sharding spec has an entry for each dimension, and this tensor is {list(shape)}: "
            f"{spec!r}"
        )
    found: dict[str, int] = {}
    for dim, entry in enumerate(entries):
        axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for axis in axes:
            if axis not in sizes:
                raise ValueError(
                    f"sharding spec {list(entries)}: the mesh has no axis {axis!r}, only "
                    f"{', '.join(sizes)}"
                )
            if axis in found:
                raise ValueError(f"sharding spec {list(entries)}: axis {axis!r} twice")
            found[axis] = dim
        parts = math.prod(sizes[axis] for axis in axes)
        if shape[dim] % parts:
            raise ValueError(
                f"sharding spec {list(entries)}: dimension {dim} has size {shape[dim]}, which "
                f"does not divide into {parts} parts ({' x '.join(axes)})"
            )
    return tuple(found.get(axis) for axis in sizes)


def module_to_mesh(module: M, mesh: ProcMesh, sharding: Mapping[str, Spec] | None = None) -> M:
    """Move the parameters and buffers of a module to a mesh; it is changed, and returned.

    Training it reads like local code: what the module computes, its gradients and the steps of an
    optimizer are operations on tensors of the mesh.

    Args:
        sharding: sharding specs by the name of a parameter, or a pattern (`"layers.*.weight"`);
            the first that matches counts. Others, and all without it, are cut along the first
            dimension over the axis of the mesh for the model (`model_parallel`, `tp`, ...), where
            there is one and the size divides; else each rank has a copy.

    Example:
        >>> model = module_to_mesh(Net(), mesh)                        # doctest: +SKIP
        >>> optimizer = torch.optim.AdamW(model.parameters())          # doctest: +SKIP
        >>> loss_fn(model(batch), target).backward()                   # doctest: +SKIP
        >>> optimizer.step()                                           # doctest: +SKIP
    """
    moved: dict[int, torch.Tensor] = {}
    for path, part in module.named_modules():
        for kept in (part._parameters, part._buffers):
            for name, value in list(kept.items()):
                if value is None or isinstance(value, Tensor):
                    continue
                if id(value) not in moved:
                    full = f"{path}.{name}" if path else name
                    moved[id(value)] = _moved(value, mesh, _spec_of(full, value, mesh, sharding))
                kept[name] = moved[id(value)]
    return module


def _moved(value: torch.Tensor, mesh: ProcMesh, spec: Spec | None) -> torch.Tensor:
    found = distribute(value.detach(), mesh, spec)
    if not isinstance(value, torch.nn.Parameter):
        return found
    parameter = torch.nn.Parameter(found, requires_grad=value.requires_grad)
    if value.requires_grad:
        parameter.register_post_accumulate_grad_hook(_settle)
    return parameter


def _spec_of(
    name: str, value: torch.Tensor, mesh: ProcMesh, sharding: Mapping[str, Spec] | None
) -> Spec | None:
    for pattern, spec in (sharding or {}).items():
        if fnmatchcase(name, pattern):
            return spec
    axis = next((each for each in MODEL_AXES if mesh.sizes.get(each, 1) > 1), None)
    if axis is None or value.dim() == 0 or value.shape[0] % mesh.sizes[axis]:
        return None
    return [axis]


def _settle(parameter: torch.Tensor) -> None:
    # Its gradient was summed up on each rank: now over the ranks, into the parts it has itself
    grad = parameter.grad
    assert isinstance(parameter, Tensor)
    if not isinstance(grad, Tensor):
        return
    [found] = functions.run(
        parts.like,
        (Input(0), Input(1)),
        inputs=[grad, parameter],
        home=grad._ref.home,
        mesh=grad._ref._mesh,
        new=[grad._meta],
        name="the sum of a gradient over ranks",
        key=parts.like,
    )
    parameter.grad = found
