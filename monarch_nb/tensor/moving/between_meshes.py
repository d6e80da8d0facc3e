"""Tensors on other ranks: a part of their mesh, or another mesh.

Rule: a slice is another name for what is there already and moves nothing. What moves goes from rank
to rank, in the order of the commands of either; the controller sees none of it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import torch

from monarch_nb.errors import MeshError
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.process import current
from monarch_nb.services.transfer.mail import Mail
from monarch_nb.services.transfer.rdma import RDMABuffer
from monarch_nb.tensor.commands.metadata import TensorMeta, fake_of, meta_of
from monarch_nb.tensor.commands.templates import Input
from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Home
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.ranks.interpreter import Cause, Failed, FailedInput, here, takes_failed

T = TypeVar("T")


class NamedStream(Protocol):
    """A `Stream`."""

    name: str


_numbers: Final = itertools.count(1)


def slice_mesh(obj: T, **coordinates: int | slice) -> T:
    """Return the same tensors, on a slice of their mesh only. Moves nothing.

    Raises as `mesh.slice` does: `TypeError` for an unknown axis, `IndexError`, `ValueError`.

    Example:
        >>> slice_mesh(x, gpus=0).to_mesh(other)           # doctest: +SKIP
    """
    return functions.on_each(obj, lambda tensor: _sliced(tensor, coordinates))


def to_mesh(obj: T, mesh: ProcMesh, stream: NamedStream | None = None) -> T:
    """Copy tensors to another mesh, rank by rank, with the same coordinates.

    Axes that `mesh` has and the tensors' mesh has not get the same values all along. Gradients come
    back the same way; along such axes they are added up.

    Args:
        stream: of the copies; that of the tensors, if none is given.

    Raises `ValueError` where `mesh` lacks an axis, or has one of another size.

    Example:
        >>> y = to_mesh(x, procs.slice(hosts=1))           # doctest: +SKIP
    """
    moved: Any = _Moved.apply
    return functions.on_each(obj, lambda tensor: moved(tensor, mesh, stream))


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: MeshTensor, mesh: ProcMesh, stream: NamedStream | None
    ) -> MeshTensor:
        ctx.source = tensor._ref.home.mesh()
        ctx.stream = tensor._ref.home.engine.stream
        return _moved(tensor, mesh, ctx.stream if stream is None else stream.name)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        here, there = grad.mesh.sizes, ctx.source.sizes
        if added := tuple(name for name in here if name not in there):
            grad = grad.reduce(added, "sum").slice_mesh(**dict.fromkeys(added, 0))
        return _moved(grad, ctx.source, ctx.stream), None, None


def _sliced(tensor: MeshTensor, coordinates: Mapping[str, int | slice]) -> MeshTensor:
    ref = tensor._ref
    refuse_whole(tensor, "slice_mesh")
    refuse_grad(tensor, "slice_mesh")
    part = ref.home.mesh().slice(**coordinates)
    home = ref.home.engine.home(part._shape)
    new = [tensor._meta]
    [found] = functions.run(
        _same,
        (Input(0),),
        inputs=[tensor],
        home=home,
        mesh=ref._mesh,
        new=new,
        name="slice_mesh",
        key=_same,
    )
    return found


def _same(value: torch.Tensor) -> torch.Tensor:
    return value.view_as(value)


def refuse_whole(tensor: MeshTensor, what: str) -> None:
    """Refuse a tensor that is cut over the ranks: it has no value of a rank's own."""
    if tensor._ref.home.is_global:
        raise ValueError(
            f"{what} is for tensors that each rank has of its own; {tensor!r} is one tensor over "
            "all ranks: operations of torch are on the whole, t.full_tensor() brings it home"
        )


def refuse_grad(tensor: MeshTensor, what: str) -> None:
    """Refuse a tensor that requires a gradient where autograd cannot follow."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{what} does not work with autograd, and {tensor!r} requires a gradient: give it "
            "t.detach(), or call it inside `with torch.no_grad():`"
        )


def _moved(tensor: MeshTensor, mesh: ProcMesh, stream: str) -> MeshTensor:
    refuse_whole(tensor, "to_mesh")
    source, meta = tensor._ref.home, tensor._meta
    target = source.engine.other(mesh._state, stream).home(mesh._shape)
    pairs = _pairs(source, target)
    number = next(_numbers)
    to, back = source.target().processes, target.target().processes
    sent: dict[int, list[int]] = {}
    for there, here_index in enumerate(pairs):
        sent.setdefault(source.ranks[here_index], []).append(back[there])
    senders = {target.ranks[there]: to[index] for there, index in enumerate(pairs)}
    functions.run(
        _send,
        (Input(0), number, sent),
        inputs=[tensor],
        home=source,
        mesh=None,
        name="to_mesh",
        moves=meta.nbytes * max(map(len, sent.values()), default=0),
    )
    given, new = (number, senders, meta.device.type), [_dense(meta)]
    [found] = functions.run(
        _receive, given, inputs=[], home=target, mesh=mesh, new=new, name="to_mesh"
    )
    return found


@functools.lru_cache(maxsize=4096)
def _dense(meta: TensorMeta) -> TensorMeta:
    with torch.no_grad():
        return meta_of(fake_of(meta).contiguous().clone())


def _pairs(source: Home, target: Home) -> list[int]:
    # For each rank of the target, in order, which of the source it gets its tensor from
    sizes, wanted = source.sizes, target.sizes
    if missing := [name for name in sizes if name not in wanted]:
        raise ValueError(
            f"destination mesh does not have dimensions {set(missing)}; slice them away first: "
            f"t.slice_mesh({missing[0]}=0)"
        )
    for name, size in sizes.items():
        if wanted[name] != size:
            raise ValueError(
                f"dimension {name} of destination device_mesh has a different length than the "
                f"source tensor: {wanted[name]}, not {size}"
            )
    steps = {name: math.prod(list(sizes.values())[at + 1 :]) for at, name in enumerate(sizes)}
    places = itertools.product(*map(range, wanted.values()))
    return [
        sum(steps.get(name, 0) * at for name, at in zip(wanted, place, strict=True))
        for place in places
    ]


class _Offered(NamedTuple):
    """A tensor that its receiver copies by itself, and then lets go of."""

    buffer: RDMABuffer
    sizes: tuple[int, ...]
    dtype: torch.dtype


one_sided: Final = {"cuda"}
"""Devices whose memory is copied so: by CUDA IPC on one host. That of the CPU travels in messages,
through shared memory."""


@takes_failed
def _send(value: torch.Tensor | Failed, number: int, to: dict[int, list[int]]) -> None:
    proc, mail = current.proc(), current.part(Mail)
    processes = to.get(here.worker.rank, [])
    if isinstance(value, Failed):
        mail.send(number, tuple(value.cause), processes)
        raise FailedInput(value.cause)
    others = [each for each in processes if each != proc.id]
    if len(others) < len(processes):  # taken as it is, by another stream perhaps
        mail.send(number, _settled(_copy(value)), [proc.id])
    if value.device.type in one_sided and value.numel():
        flat = _settled(_bytes_of(_copy(value)))
        for each in others:
            offered = _Offered(RDMABuffer(flat), tuple(value.shape), value.dtype)
            mail.send(number, offered, [each])
    elif others:
        mail.send(number, value.detach().cpu(), others)


def _receive(number: int, senders: dict[int, int], device: str) -> torch.Tensor:
    proc, mail = current.proc(), current.part(Mail)
    source = senders[here.worker.rank]
    try:
        found = mail.take(number, source)
        if isinstance(found, _Offered):
            return _copied(found, device)
    except MeshError as error:
        raise RuntimeError(f"to_mesh: {error}") from error
    if not isinstance(found, torch.Tensor):
        raise FailedInput(Cause(*found))
    return found if source == proc.id else _copy(found).to(device)


def _copied(offered: _Offered, device: str) -> torch.Tensor:
    room = torch.empty(offered.sizes, dtype=offered.dtype, device=device)
    try:
        offered.buffer.read_into(_bytes_of(room)).get()
    finally:
        offered.buffer.drop()
    return room


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8)


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    # who gets it cannot know when a GPU has made it
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
    return tensor
