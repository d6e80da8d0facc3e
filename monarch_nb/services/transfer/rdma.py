"""`RDMABuffer` and `RDMAAction`: memory of one process that others read and write by themselves.

Rules: what is wrong with the arguments is raised at the call, what goes wrong on the way by the
future; a handle is a few numbers, checked when it arrives, and believed only as the way to the
owner's page. Names and signatures are Monarch's.
"""

from __future__ import annotations

import warnings
from typing import Any, Final, final

from monarch_nb.core.wire.frames import ROOT_PORT
from monarch_nb.core.wire.messages.actors import DropBuffer
from monarch_nb.data import device
from monarch_nb.data.memory import Memory, memory_of
from monarch_nb.data.registry import Place
from monarch_nb.errors import RemoteProtocolError
from monarch_nb.process import context, current
from monarch_nb.process.futures.future import Future, completed, make
from monarch_nb.services.transfer import transfers
from monarch_nb.services.transfer.buffers import Buffers
from monarch_nb.services.transfer.transfers import Operation, Remote

_U64: Final = 1 << 64


class RDMAReadTransferWarning(Warning):
    """Monarch's; never given here."""


class RDMAWriteTransferWarning(Warning):
    """Monarch's; never given here."""


class RDMATcpFallbackWarning(Warning):
    """A buffer of another host was used: there is no RDMA hardware in play, it goes over TCP."""


warnings.simplefilter("once", RDMATcpFallbackWarning)


def is_ibverbs_available() -> bool:
    """Return whether RDMA hardware is used: never yet, whatever the machine has."""
    return False


def is_rdma_available() -> bool:
    """Deprecated, as in Monarch: `is_ibverbs_available()`. Buffers work without."""
    return is_ibverbs_available()


def get_rdma_backend() -> str:
    """Return "tcp": what takes a buffer to another host. `RDMABuffer.backend` says it of one
    buffer."""
    return "tcp"


@final
class RDMABuffer:
    """Memory that this process offers to others; the handle travels in messages, the data stays.

    A read or a write is done by the process that asks for it: on one host straight from memory to
    memory, while the owner computes, or is stopped, or holds the interpreter. The memory is kept
    until `drop`, or until the actor that made the buffer ends.

    Args:
        data: 1-D contiguous `torch.Tensor` (CPU or CUDA) or `memoryview`. For any other tensor:
            `RDMABuffer(t.view(torch.uint8).flatten())`, of a contiguous one.

    Raises:
        ValueError: not 1-D, not contiguous, or of no bytes.

    Example:
        >>> weights = torch.ones(1000)                      # doctest: +SKIP
        >>> handle = RDMABuffer(weights)                     # doctest: +SKIP
        >>> copy = torch.empty(1000)                         # doctest: +SKIP
        >>> handle.read_into(copy).get()  # in any process   # doctest: +SKIP
    """

    __slots__ = ("_remote",)

    def __init__(self, data: Any) -> None:
        memory = memory_of(data)
        if not memory.size:
            raise ValueError("data has no bytes: an RDMABuffer of size 0 cannot be made")
        instance = context.current_instance()
        mine = instance.process == current.proc().id
        place = current.part(Buffers).add(memory, instance.port if mine else ROOT_PORT)
        owner = str(instance.actor_id)
        self._remote = Remote(place, memory.size, memory.writable, owner, device.share(memory))

    def read_into(self, dst: object, *, timeout: float = 60) -> Future[None]:
        """Copy the whole buffer into `dst`, of its size or larger. `timeout` in seconds. Where it
        fails on the way, a part of `dst` may be written.

        Raises:
            ValueError: at the call, if `dst` is smaller, read-only, or not 1-D and contiguous.
            ClosedError: by the future, if the buffer was dropped; `RankExited` if its owner died;
                `TimeoutError`.
        """
        return RDMAAction().read_remote(dst, self).submit(timeout=timeout)

    def write_from(self, src: object, *, timeout: float = 60) -> Future[None]:
        """Copy all of `src`, at most the buffer's size, to its start. Errors as `read_into`."""
        return RDMAAction().write_remote(self, src).submit(timeout=timeout)

    def drop(self) -> Future[None]:
        """Let go of the memory: later reads and writes fail. Any process may; twice is fine."""
        proc, place = current.proc(), self._remote.place
        device.forget(place)
        if place.process == proc.id:
            current.part(Buffers).drop(place.serial)
            return completed(None)
        dropped: Future[None] = make(Future)
        proc.ask(
            place.process,
            DropBuffer(place.serial),
            lambda _: dropped._set_result(None),  # with an owner that has died it is gone, too
        )
        return dropped

    def size(self) -> int:
        """Return the size in bytes."""
        return self._remote.size

    @property
    def owner(self) -> str:
        """The id of the actor that made it."""
        return self._remote.owner

    @property
    def backend(self) -> str:
        """How this process reaches it: "memory" (its own), "cma", "cuda_ipc" (same host), "tcp"."""
        return transfers.way(self._remote)

    def __reduce__(self) -> tuple[object, ...]:
        place, *rest = self._remote
        return _restore, (tuple(place), *rest)

    def __repr__(self) -> str:
        where = "" if self._remote.shared is None else ", on a GPU"
        number = self._remote.place.serial
        return f"<RDMABuffer {number} of {self.owner}: {self.size()} bytes{where}>"


def _restore(place: Any, size: Any, writable: Any, owner: Any, shared: Any) -> RDMABuffer:
    plain = type(size) is int and size > 0 and type(writable) is bool and type(owner) is str
    if not plain or not isinstance(shared, (tuple, type(None))):
        raise RemoteProtocolError(f"not the handle of a buffer: {(size, writable, owner)!r:.80}")
    found = object.__new__(RDMABuffer)
    found._remote = Remote(Place.checked(place), size, writable, owner, shared)
    return found


@final
class RDMAAction:
    """Several reads and writes as one: `submit` begins them all, any number of times.

    Those on buffers of one process follow one another, in order; different owners' overlap.

    Example:
        >>> pull = RDMAAction()                                       # doctest: +SKIP
        >>> for handle, tensor in zip(handles, tensors):               # doctest: +SKIP
        ...     pull.read_remote(tensor, handle)
        >>> pull.submit().get()                                        # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._operations: list[Operation] = []

    def read_remote(self, dst: object, src: RDMABuffer) -> RDMAAction:
        """Add a read of `src` into `dst`. Raises `ValueError` as `RDMABuffer.read_into`."""
        memory, remote = memory_of(dst, "dst"), _remote_of(src)
        if memory.size < remote.size:
            raise ValueError(
                f"dst has {memory.size} bytes and {remote} {remote.size}: it must be as large"
            )
        if not memory.writable:
            raise ValueError("dst is read-only: nothing can be read into it")
        return self._add(Operation(remote, memory, remote.size, write=False))

    def write_remote(self, dst: RDMABuffer, src: object) -> RDMAAction:
        """Add a write of `src` to `dst`. Raises `ValueError` as `RDMABuffer.write_from`."""
        memory, remote = memory_of(src, "src"), _remote_of(dst)
        if memory.size > remote.size:
            raise ValueError(f"src has {memory.size} bytes, {remote} has room for {remote.size}")
        if not remote.writable:
            raise ValueError(f"{remote} was made of read-only memory: it can only be read")
        return self._add(Operation(remote, memory, memory.size, write=True))

    def fetch_add(self, src: RDMABuffer, dst: object, add: int) -> RDMAAction:
        """Raise `NotImplementedError`, as in Monarch."""
        raise NotImplementedError("fetch_add: no transport here has atomic operations")

    def compare_and_swap(self, src: RDMABuffer, dst: object, compare: int, swap: int) -> RDMAAction:
        """Raise `NotImplementedError`, as in Monarch."""
        raise NotImplementedError("compare_and_swap: no transport here has atomic operations")

    def submit(self, *, timeout: float = 60) -> Future[None]:
        """Begin all; done when all are, or one has failed. `timeout` in seconds.

        Raises:
            OverflowError: for a negative timeout, or one that is no 64-bit number of seconds.
        """
        if not 0 <= timeout < _U64:
            raise OverflowError(f"timeout must be between 0 and {_U64 - 1} s, not {timeout}")
        for each in self._operations:
            if transfers.way(each.remote) == "tcp":
                _warn_of_tcp(each.remote)
                break
        return transfers.submit(self._operations, timeout)

    def _add(self, operation: Operation) -> RDMAAction:
        for other in self._operations:
            is_race = not (operation.write and other.write)
            if is_race and _overlap(operation.local, other.local):
                raise ValueError(
                    "this memory is the destination of another read of the same RDMAAction, or "
                    "read while that fills it; use two actions, one after the other"
                )
        self._operations.append(operation)
        return self


def _remote_of(buffer: object) -> Remote:
    if not isinstance(buffer, RDMABuffer):
        raise TypeError(f"an RDMABuffer is needed here, not {type(buffer).__name__}")
    return buffer._remote


def _overlap(one: Memory, other: Memory) -> bool:
    if (one.tensor is None) != (other.tensor is None):
        return False
    return one.address < other.address + other.size and other.address < one.address + one.size


def _warn_of_tcp(remote: Remote) -> None:
    warnings.warn(
        f"{remote} is on another host: it is copied over TCP, as no RDMA hardware is used",
        RDMATcpFallbackWarning,
        stacklevel=4,
    )
