"""`Transfer`: a batch of reads and writes of buffers, as a future.

What this process can reach by itself is copied by it (`data/onesided.py`): the first piece at the
call, as a thread would take longer than a small copy does; the rest in pieces by the copiers. For
all else the owner is asked (`relayed.py`). Rules: operations on one owner's buffers follow one
another, those on different owners' overlap; the future is done when nothing is written any more;
the first error is the batch's, and what was not begun by then is not.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from monarch_nb.core.points import point
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.data import device, onesided
from monarch_nb.data.memory import Memory
from monarch_nb.data.onesided import Dropped, Outside, Unreachable
from monarch_nb.data.registry import Place
from monarch_nb.errors import BrokenError, CallCancelled, ClosedError, MeshError
from monarch_nb.process import current
from monarch_nb.process.futures.future import Future, make
from monarch_nb.services.transfer.buffers import THREADS, Buffers
from monarch_nb.services.transfer.relayed import Served

PIECE_BYTES: Final = 1 << 20  # 0.1 ms: in the kernel nobody else gets the core meanwhile
GPU_PIECE_BYTES: Final = 1 << 28  # 0.2 ms on a GPU; asking for a copy and waiting takes 0.1 ms
STAGED_PIECE_BYTES: Final = 1 << 24  # between a GPU and main memory: 2 ms, pinned on the way
Move = Callable[[int, int], None]  # offset, size


class Remote(NamedTuple):
    """A registered buffer as a handle knows it. `shared`: how to open it, if it is on a GPU."""

    place: Place
    size: int
    writable: bool
    owner: str
    shared: tuple[object, ...] | None

    @property
    def actor(self) -> str:
        """Its owner for people: without the process's number."""
        return self.owner.rpartition("/")[2]

    def __str__(self) -> str:
        return f"buffer {self.place.serial} of {self.actor}"


class Operation(NamedTuple):
    """Copy `size` bytes of `remote` into `local`, or from there (`write`)."""

    remote: Remote
    local: Memory
    size: int
    write: bool

    @property
    def piece_bytes(self) -> int:
        """How much is copied at once."""
        on_gpu = (self.remote.shared is not None) + (self.local.tensor is not None)
        return (PIECE_BYTES, STAGED_PIECE_BYTES, GPU_PIECE_BYTES)[on_gpu]


class Transfer(Future[None]):
    """Done when all operations are, or one has failed. `cancel` stops between two pieces."""

    __slots__ = ("_deadline", "_error", "_left", "_lock", "_served", "_timeout")

    def begin(self, operations: Sequence[Operation], timeout: float) -> None:
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._served: list[Served] = []
        chains: dict[int, collections.deque[Operation]] = {}
        for each in operations:
            chains.setdefault(each.remote.place.process, collections.deque()).append(each)
        self._left = len(chains)
        if not chains:
            self._set_result(None)
        for chain in chains.values():
            self._advance(chain)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._fail(CallCancelled("the transfer was cancelled; its destination may be half written"))
        return True

    def is_over(self) -> bool:
        """Return whether nothing more is to be begun: it has failed, or time is up."""
        if self._error is None and time.monotonic() > self._deadline:
            self._fail(TimeoutError())
        return self._error is not None

    def ended(self, operation: Operation, error: BaseException | None) -> None:
        if error is not None:
            self._fail(_explained(operation, error, self._timeout))

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            served = list(self._served)
        for each in served:
            each.finish(None)

    def _advance(self, chain: collections.deque[Operation]) -> None:
        # Begin the operations of a chain until one goes on by itself, which comes back here
        while chain and not self.is_over():
            operation = chain.popleft()
            if not self._start(operation, chain):
                return
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._conclude()

    def _conclude(self) -> None:
        error = self._error
        if error is None:
            self._set_result(None)
        else:
            late = type(error) is TimeoutError and not error.args
            text = f"not done within {self._timeout:g} s; pass a longer timeout="
            self._set_exception(TimeoutError(text) if late else error)

    def _start(self, operation: Operation, chain: collections.deque[Operation]) -> bool:
        move = _move_of(operation)
        try:
            if move is None:
                raise Unreachable("on another host")  # noqa: TRY301  one way to be served
            first = min(operation.size, operation.piece_bytes)
            move(0, first)
        except Unreachable:
            self._serve(operation, chain)
            return False
        except Exception as error:  # noqa: BLE001  of a device, too: the caller's to see
            self.ended(operation, error)
            return True
        if first == operation.size:
            return True
        _Pieces(self, operation, move, first, partial(self._copied, operation, chain)).start()
        return False

    def _copied(
        self, operation: Operation, chain: collections.deque[Operation], reached: bool
    ) -> None:
        if reached or self.is_over():
            self._advance(chain)
        else:
            self._serve(operation, chain)  # its owner has ended, probably: it will be known how

    def _serve(self, operation: Operation, chain: collections.deque[Operation]) -> None:
        # Through the owner; memory on a GPU by way of pinned memory, on a copier's time
        local, later = operation.local, current.part(Buffers).copiers.put
        staged = local if local.tensor is None else device.staging(operation.size)
        if staged is not local and operation.write:
            device.copy(staged, device.part(local, 0, operation.size))

        def then(error: BaseException | None) -> None:
            later(lambda: landed(error))

        def landed(error: BaseException | None) -> None:
            if error is None and staged is not local and not operation.write and not self._error:
                device.copy(device.part(local, 0, operation.size), staged)
            self.ended(operation, error)
            self._advance(chain)

        served = Served(
            current.proc(),
            operation.remote.place,
            staged,
            operation.size,
            write=operation.write,
            deadline=self._deadline,
            later=later,
            then=then,
        )
        with self._lock:
            self._served.append(served)
        served.start()


class _Pieces:
    def __init__(
        self,
        transfer: Transfer,
        operation: Operation,
        move: Move,
        start: int,
        then: Callable[[bool], None],
    ) -> None:
        self._transfer = transfer
        self._operation = operation
        self._move = move
        self._piece = operation.piece_bytes
        self._offsets = itertools.count(start, self._piece)
        self._then = then
        self._lock = threading.Lock()
        self._runners = THREADS
        self._reached = True

    def start(self) -> None:
        put = current.part(Buffers).copiers.put
        for _ in range(self._runners):
            put(self._run)

    def _run(self) -> None:
        size = self._operation.size
        while (offset := next(self._offsets)) < size and not self._transfer.is_over():
            try:
                self._move(offset, min(self._piece, size - offset))
            except Unreachable:
                self._reached = False
                break
            except Exception as error:  # noqa: BLE001  the caller's to see
                self._transfer.ended(self._operation, error)
        with self._lock:
            self._runners -= 1
            is_last = not self._runners
        if is_last:
            self._then(self._reached)


def submit(operations: Iterable[Operation], timeout: float) -> Future[None]:
    point("transfer.begin")
    transfer = make(Transfer)
    assert isinstance(transfer, Transfer)
    transfer.begin(list(operations), timeout)
    return transfer


def way(remote: Remote) -> str:
    """Return how this process would reach a buffer: "memory", "cma", "cuda_ipc" or "tcp"."""
    proc = current.proc()
    if remote.place.process == proc.id:
        return "memory"
    if remote.place.process >> HOST_SHIFT != proc.host:
        return "tcp"
    return "cma" if remote.shared is None else "cuda_ipc"


def _move_of(operation: Operation) -> Move | None:
    # What copies [offset, offset + size); None where the owner has to help
    match way(operation.remote):
        case "memory":
            return _own(operation)
        case "cma":
            return _between_processes(operation)
        case "cuda_ipc":
            return _between_devices(operation)
        case _:
            return None


def _own(operation: Operation) -> Move:
    remote, local, _, write = operation

    def move(offset: int, count: int) -> None:
        found = current.part(Buffers).find(remote.place.serial)
        if found is None:
            raise Dropped
        onesided.check(found, offset, count, write=write)
        target, source = (found, local) if write else (local, found)
        if target.tensor is None and source.tensor is None:
            ctypes.memmove(target.address + offset, source.address + offset, count)
        else:
            device.copy(device.part(target, offset, count), device.part(source, offset, count))

    return move


def _between_processes(operation: Operation) -> Move:
    remote, local, _, write = operation

    def move(offset: int, count: int) -> None:
        if local.tensor is None:
            onesided.copy(remote.place, local.address + offset, offset, count, write=write)
            return
        staged, own = device.staging(count), device.part(local, offset, count)
        if write:
            device.copy(staged, own)
        onesided.copy(remote.place, staged.address, offset, count, write=write)
        if not write:
            device.copy(own, staged)

    return move


def _between_devices(operation: Operation) -> Move:
    remote, local, _, write = operation
    assert remote.shared is not None
    shared = remote.shared

    def move(offset: int, count: int) -> None:
        try:
            with onesided.locked(remote.place) as found:
                onesided.check(found, offset, count, write=write)
                there = device.part(device.open_shared(remote.place, shared), offset, count)
                here = device.part(local, offset, count)
                device.copy(*((there, here) if write else (here, there)))
        except Dropped:
            device.forget(remote.place)
            raise

    return move


def _explained(operation: Operation, error: BaseException, timeout: float) -> BaseException:
    remote, verb = operation.remote, "written" if operation.write else "read"
    match error:
        case Dropped():
            text = f"buffer {remote.place.serial} not found"
            return ClosedError(f"{text}: {remote.actor} has dropped it, or has ended")
        case Outside() | Unreachable():
            return BrokenError(f"{remote} cannot be {verb}: {error}")
        case TimeoutError():
            return TimeoutError(f"{remote} was not {verb} within {timeout:g} s: {error}")
        case MeshError():
            error.args = (f"{remote} cannot be {verb}: {error}", *error.args[1:])
            return error
        case _:
            return error
