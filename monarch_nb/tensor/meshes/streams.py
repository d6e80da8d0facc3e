"""Streams: commands of one run in order, those of several beside each other.

Rules: a tensor lives on one stream; another gets it by `borrow`, without a copy, and until that
ends nobody can change what somebody else reads. What streams wait for of each other follows the
order in which the controller said it, so they never wait in a circle.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, Final, Self, final

import torch

from monarch_nb.process import current
from monarch_nb.services.transfer.mail import Mail
from monarch_nb.tensor.commands.borrows import Loan, check
from monarch_nb.tensor.commands.templates import MAIN, Input
from monarch_nb.tensor.engine import functions
from monarch_nb.tensor.engine.batches import Home
from monarch_nb.tensor.engine.tensors import MeshTensor
from monarch_nb.tensor.moving.between_meshes import refuse_grad, refuse_whole
from monarch_nb.tensor.ranks.interpreter import Cause, Failed, FailedInput, takes_failed

_numbers: Final = itertools.count(1 << 40)  # apart from those of what moves between ranks


class _Active(threading.local):
    def __init__(self) -> None:
        self.names = [MAIN]


_active: Final = _Active()


def active_name() -> str:
    """Return the stream that is active in this thread."""
    return _active.names[-1]


@final
class Stream:
    """An order of its own on the ranks. Equal names are one stream; that of everything else is
    "main".

    Example:
        >>> comms = Stream("comms")
        >>> lent, loan = comms.borrow(gradient, mutable=True)      # doctest: +SKIP
        >>> with loan:                                             # doctest: +SKIP
        ...     lent.reduce_("gpus", "avg")        # beside what goes on in "main"

    Name and meaning are Monarch's.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @contextlib.contextmanager
    def _active(self) -> Iterator[Stream]:
        _active.names.append(self.name)
        try:
            yield self
        finally:
            _active.names.pop()

    def activate(self) -> contextlib.AbstractContextManager[Stream]:
        """Have tensors that are made out of nothing inside the block made on this stream."""
        return self._active()

    def borrow(self, t: MeshTensor, mutable: bool = False) -> tuple[MeshTensor, Borrow]:
        """Lend this stream a tensor of another one: the same memory.

        Args:
            t: until the borrow ends nobody may change it.
            mutable: this stream may change it; its own may not even read it meanwhile.

        Raises:
            ValueError: for a tensor that is lent already in a way that forbids it, one of this
                stream, and one cut over the ranks.
            TypeError: for what is no tensor of a mesh, and for one that requires a gradient.
        """
        if not isinstance(t, MeshTensor):
            raise TypeError(f"borrow takes a tensor of a mesh, not {type(t).__name__}")
        refuse_whole(t, "borrow")
        refuse_grad(t, "borrow")
        source = t._ref.home
        if source.engine.stream == self.name:
            raise ValueError(f"{t!r} is on {self!r} already")
        check(t, "borrow", changes=mutable)
        target = source.engine.other(source.engine.procs, self.name).home(source.shape)
        lent = _passed(t, source, target)
        return lent, Borrow(lent, Loan(t, lent, self.name, mutable=mutable), source, target)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


@final
class Borrow:
    """What `Stream.borrow` has begun; `drop()` ends it, and so does the end of a `with` block."""

    def __init__(self, lent: MeshTensor, loan: Loan, source: Home, target: Home) -> None:
        self._mesh = lent._ref._mesh
        self._loan = loan
        self._source = source
        self._target = target

    def drop(self) -> None:
        """Let the tensor's own stream use it again, when this one has come so far. The borrowed one
        and its views cannot be used any more. Twice is fine."""
        if self._loan.ended:
            return
        self._loan.end()
        number = next(_numbers)
        functions.run(_pass, (None, number), inputs=[], home=self._target, mesh=None, name="drop")
        functions.run(_await, (number,), inputs=[], home=self._source, mesh=None, name="drop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()


def get_active_stream() -> Stream:
    """Return the stream that is active in this thread: `Stream("main")`, if none was activated."""
    return Stream(active_name())


def stream_of(tensor: MeshTensor) -> Stream:
    return Stream(tensor._ref.home.engine.stream)


def _passed(t: MeshTensor, source: Home, target: Home) -> MeshTensor:
    # both leave at once: none may be lost with a rank without the other
    number = next(_numbers)
    functions.run(_pass, (Input(0), number), inputs=[t], home=source, mesh=None, name="borrow")
    source.engine.flush()
    [lent] = functions.run(
        _receive, (number,), inputs=[], home=target, mesh=t._ref._mesh, new=[t._meta], name="borrow"
    )
    target.engine.flush()
    return lent


@takes_failed
def _pass(value: object, number: int) -> None:
    proc, mail = current.proc(), current.part(Mail)
    content = tuple(value.cause) if isinstance(value, Failed) else (value, _event())
    mail.send(number, content, [proc.id])
    if isinstance(value, Failed):
        raise FailedInput(value.cause)


def _await(number: int) -> Any:
    proc, mail = current.proc(), current.part(Mail)
    found = mail.take(number, proc.id)
    if len(found) > 2:
        raise FailedInput(Cause(*found))
    value, event = found
    if event is not None:
        event.wait()
    return value


def _receive(number: int) -> torch.Tensor:
    value: torch.Tensor = _await(number)
    if value.is_cuda:
        value.record_stream(torch.cuda.current_stream())
    return value.view_as(value)


def _event() -> torch.cuda.Event | None:
    if not torch.cuda.is_available():
        return None
    event = torch.cuda.Event()
    event.record()
    return event
