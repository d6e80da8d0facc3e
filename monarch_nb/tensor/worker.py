"""The actor behind a stream of a mesh: one on each rank, which runs batches and answers fetches.

Rule: an actor like any other, so interrupts, deaths, stacks, output and the live view work as for
actors; it lives on a thread of its own, never on the rank's main thread, which is the user's.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree

from monarch_nb.actors import context
from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.tensor.commands import Definition
from monarch_nb.tensor.interpreter import FailedInput, Interpreter, here

VALUE: Final = "value"
FAILED: Final = "failed"


class TensorWorker(Actor):
    """Holds the tensors of one stream on one rank."""

    takes_main_thread = False

    def __init__(self, mesh: str) -> None:
        self.rank = context.context().actor_instance.rank.rank
        self.interpreter = Interpreter(mesh, self.rank)
        self._taken = -1

    @endpoint
    def run(self, number: int, definitions: Sequence[Definition], batch: bytes) -> None:
        """Run a batch. Raises the first error that came up in it, for people to see.

        Whoever fetches what has failed is told by `fetch`.
        """
        if number <= self._taken:
            return  # it came twice, as its sender was interrupted
        self._taken = number
        here.worker = self
        for definition in definitions:
            self.interpreter.define(definition)
        numbers = array.array("q")
        numbers.frombytes(batch)
        errors = self.interpreter.run(number, numbers.tolist())
        if errors:
            raise errors[0]

    @endpoint
    def fetch(
        self, refs: Sequence[int], is_wanted: bool, collect: Callable[[Any], Any]
    ) -> tuple[str, Any]:
        """`("value", tensors)` where they are wanted, else without; or `("failed", cause)`.

        `collect` is what each rank does to a tensor first.
        """
        here.worker = self
        try:
            found = [collect(each) for each in self.interpreter.values(refs)]
        except FailedInput as error:
            return FAILED, tuple(error.cause)
        return VALUE, _pytree.tree_map(_at_home, found) if is_wanted else None


def _at_home(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
