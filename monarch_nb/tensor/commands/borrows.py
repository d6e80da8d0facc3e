"""Who may read and who may change a tensor that two streams have.

Rule: known here, by the memory that a tensor is a view of, so that what must not be is an error at
the line that does it. While nothing is lent, it costs a look into an empty table.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Final

import torch

watched: Final[dict[int, list[Loan]]] = {}
"""Loans by the `id` of the tensor that is lent (of which others are views), and of the one that was
given for it; until that is garbage."""


class Loan:
    """The memory of `tensor` is lent to the stream `to`, where it is `given`.

    `ended` moves forward only.
    """

    def __init__(
        self, tensor: torch.Tensor, given: torch.Tensor, to: str, *, mutable: bool
    ) -> None:
        root = _root(tensor)
        self.source = id(root)
        self.given = id(given)
        self.to = to
        self.mutable = mutable
        self.ended = False
        for each in (root, given):
            if id(each) not in watched:
                weakref.finalize(each, watched.pop, id(each), None)
            watched.setdefault(id(each), []).append(self)

    def end(self) -> None:
        """End it: its own stream may do with it what it likes again, the other one nothing any
        more."""
        self.ended = True
        left = [each for each in watched.get(self.source, ()) if each is not self]
        if left:
            watched[self.source] = left
        else:
            watched.pop(self.source, None)


def check(tensor: torch.Tensor, what: str, *, changes: bool) -> None:
    """Raise `ValueError` if a loan forbids this use of a tensor."""
    memory = id(_root(tensor))
    for loan in watched.get(memory, ()):
        if memory == loan.given:
            _check_given(tensor, what, loan, changes=changes)
        elif loan.mutable:
            raise ValueError(
                f"{what}: {tensor!r} is lent to stream {loan.to!r}, which may change it. Say "
                "drop() to what borrow() returned first"
            )
        elif changes:
            raise ValueError(
                f"{what} would change {tensor!r}, which is lent to stream {loan.to!r} to be read. "
                "Say drop() to what borrow() returned first"
            )


def check_all(tensors: Iterable[torch.Tensor], what: str, changed: Iterable[object] = ()) -> None:
    """Do `check` for some tensors, of which some are changed."""
    ids = {id(each) for each in changed}
    for each in tensors:
        check(each, what, changes=id(each) in ids)


def _check_given(tensor: torch.Tensor, what: str, loan: Loan, *, changes: bool) -> None:
    if loan.ended:
        raise ValueError(f"{what}: {tensor!r} was borrowed, and the borrow has ended: drop()")
    if changes and not loan.mutable:
        raise ValueError(
            f"{what} would change {tensor!r}, which was borrowed to be read: "
            "stream.borrow(t, mutable=True)"
        )


def _root(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base
    return tensor if base is None else base
