"""`send_tensor` and `recv_tensor`: a tensor from one process to another, matched by peer and tag.

The sender offers a buffer (`rdma.py`), the receiver reads it and says so: one copy, straight into
the tensor that is received. Rules: offers of one sender with one tag are taken in order, receives
in the order of their calls; nothing is read before it is wanted; the death of the peer ends a wait.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.frames import Message
from monarch_nb.core.wire.messages.actors import OfferTensor
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.data.memory import memory_of
from monarch_nb.errors import BrokenError
from monarch_nb.process import context, current
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.future import Future, make
from monarch_nb.process.mailbox import Key, Mailbox
from monarch_nb.process.process import Proc, Waiter
from monarch_nb.services.transfer import transfers
from monarch_nb.services.transfer.buffers import Copiers
from monarch_nb.services.transfer.rdma import RDMABuffer
from monarch_nb.services.transfer.relayed import time_limit
from monarch_nb.services.transfer.transfers import Operation


class Exchange(Mailbox[Message]):
    def __init__(self, copiers: Copiers) -> None:
        super().__init__()
        self.copiers = copiers

    def on_offer(self, offer: OfferTensor, message: Message) -> None:
        self.put((message.source, offer.tag), message)


class _Receive(Waiter):
    def __init__(self, proc: Proc, exchange: Exchange, key: Key, out: Any, timeout: float) -> None:
        self.key = key
        self._exchange = exchange
        self.future: Future[Any] = make(Future)
        self._proc = proc
        self._out = out
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._port = proc.new_port()
        self._limit = time_limit(timeout, self._expired)

    def start(self) -> None:
        self._proc.waiting[self._port] = self
        self._limit.start()
        self._exchange.want(self.key, self._accept)
        self._proc._open(self.key[0])  # so that its death is told
        self._proc.look_for_dead(self)

    def deliver(self, message: Message) -> None:
        # Nobody sends here: the port only says whose death is waited for
        self._proc.discard(message)

    def _accept(self, message: Message) -> None:
        # not in the inbox thread: memory is allocated, and the offer unpickled
        self._exchange.copiers.put(lambda: self._take(message))

    def _take(self, message: Message) -> None:
        try:
            buffer, dtype, shape, device = self._proc.decode_user_data(message)
            target = self._target(dtype, shape, device)
            flat = target.view(-1) if target.is_contiguous() else target.new_empty(target.numel())
            operations = []
            if buffer is not None:
                remote = buffer._remote
                operations = [Operation(remote, memory_of(flat, "out"), remote.size, write=False)]
            moved = transfers.submit(operations, max(0.0, self._deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001  the caller's to see; the sender is told
            self._end(message, error, None)
            return

        def done(_: Future[None]) -> None:
            error = moved.exception()
            if error is None and not target.is_contiguous():
                target.copy_(flat.view(target.shape))
            self._end(message, error, target)

        moved.add_done_callback(done)

    def _target(self, dtype: Any, shape: tuple[int, ...], device: str) -> Any:
        if self._out is None:
            torch = importlib.import_module("torch")
            return torch.empty(shape, dtype=dtype, device=device)
        out = self._out.detach()
        if out.dtype != dtype or tuple(out.shape) != shape:
            said = f"{dtype} of shape {shape} was sent, out is {out.dtype} of {tuple(out.shape)}"
            raise ValueError(said)
        return out

    def _end(self, message: Message, error: BaseException | None, value: object) -> None:
        self._close()
        self._proc.answer(message, Done() if error is None else Refused(str(error)))
        if error is None:
            self.future._set_result(value if self._out is None else self._out)
        else:
            self.future._set_exception(error)

    def awaited(self) -> tuple[int]:
        return (self.key[0],)

    def lost(self, ended: Exit) -> None:
        if self._exchange.unwant(self.key, self._accept):
            self._close()
            error = ended.error()
            error.args = (f"recv_tensor: {error}", *error.args[1:])
            self.future._set_exception(error)

    def abandon(self, ended: Exit) -> None:
        self.lost(ended)

    def _expired(self) -> None:
        if self._exchange.unwant(self.key, self._accept):
            self._close()
            text = f"no tensor with tag {self.key[1]} came within {self._timeout:g} s"
            self.future._set_exception(TimeoutError(f"recv_tensor: {text}"))

    def _close(self) -> None:
        self._limit.cancel()
        self._proc.waiting.pop(self._port, None)


def send_tensor(tensor: Any, to: Any, *, tag: int = 0, timeout: float = 60) -> Future[None]:
    """Send a tensor to whoever calls `recv_tensor` in another process.

    Args:
        to: a slice of one rank of an actor or process mesh; or a rank (or `Point`) in the mesh of
            the actor that calls.
        tag: a number that both sides use.
        timeout: seconds within which it must have been received.

    Returns:
        A future that is done when the receiver has the bytes; until then leave the tensor alone.

    Raises:
        ValueError: at the call, for a peer that is not one rank.
        RankExited, TimeoutError: by the future.

    Example:
        >>> send_tensor(activations, stages.slice(gpus=1)).get()       # doctest: +SKIP
        >>> x = recv_tensor(stages.slice(gpus=0)).get()  # in the other # doctest: +SKIP
    """
    return send_to(_process_of(to), tensor, tag, timeout)


def send_to(process: int, tensor: Any, tag: int, timeout: float) -> Future[None]:
    """The same, to a process by its id."""
    proc = current.proc()
    whole = tensor.detach().contiguous()
    buffer = RDMABuffer(whole.view(-1)) if whole.numel() else None
    offer = buffer, whole.dtype, tuple(whole.shape), str(whole.device)
    sent: Future[None] = make(Future)

    def over(error: BaseException | None) -> None:
        limit.cancel()
        if buffer is not None:
            buffer.drop()
        if error is None:
            sent._set_result(None)
        else:
            sent._set_exception(error)

    def answered(answer: Done | Refused) -> None:
        if (gone := proc.dead.get(process)) is not None:
            over(gone.error())
        elif isinstance(answer, Refused):
            over(BrokenError(f"send_tensor: not received: {answer.error}"))
        else:
            over(None)

    late = TimeoutError(f"send_tensor: not received within {timeout:g} s (tag {tag})")
    limit = time_limit(timeout, lambda: over(late))
    limit.start()
    payload = proc.encode_bytes(pickling.dumps(offer))
    proc.ask(process, OfferTensor(tag), answered, payload=payload)
    return sent


def recv_tensor(source: Any, *, out: Any = None, tag: int = 0, timeout: float = 60) -> Future[Any]:
    """Receive what `source` sends with `send_tensor` and the same tag, in order.

    Args:
        source: as `to` of `send_tensor`.
        out: receive into this tensor, of the same dtype and shape; else a new one is made, on the
            sender's kind of device.

    Raises:
        ValueError: at the call, for a peer that is not one rank; by the future, if `out` does not
            fit.
        RankExited, TimeoutError: by the future.
    """
    return receive_from(_process_of(source), out, tag, timeout)


def receive_from(process: int, out: Any, tag: int, timeout: float) -> Future[Any]:
    """The same, from a process by its id."""
    key = process, tag
    receive = _Receive(current.proc(), current.part(Exchange), key, out, timeout)
    receive.start()
    return receive.future


def _process_of(peer: Any) -> int:
    mesh, ranks = peer, getattr(peer, "ranks", None)
    if isinstance(peer, int) or hasattr(peer, "rank"):
        rank = peer if isinstance(peer, int) else peer.rank
        mesh = context.current_instance().proc_mesh
        if not 0 <= rank < len(mesh.ranks):
            raise ValueError(f"rank {rank} is not one of the {len(mesh.ranks)} ranks of {mesh!r}")
        ranks = [mesh.ranks[rank]]
    if not isinstance(ranks, list) or len(ranks) != 1:
        raise ValueError(f"a peer is one rank; type mesh.slice(gpus=0), not {peer!r:.80}")
    return int(mesh._state.processes[ranks[0]])
