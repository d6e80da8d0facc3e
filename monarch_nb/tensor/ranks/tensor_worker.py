"""The actor behind a stream of a mesh: one on each rank, which runs batches and answers fetches.

Rule: an actor like any other, so interrupts, deaths, stacks, output and the live view work as for
actors; it lives on a thread of its own, never on the rank's main thread, which is the user's.
"""

from __future__ import annotations

import array
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch.utils import _pytree

from monarch_nb.actors.definition import Actor, endpoint
from monarch_nb.actors.hosting import Hosting
from monarch_nb.core.wire.frames import ACTOR_BIT
from monarch_nb.meshes.process_groups import Membership
from monarch_nb.process import context, current
from monarch_nb.tensor.commands.templates import MAIN, Definition
from monarch_nb.tensor.ranks.interpreter import FailedInput, Interpreter, here

VALUE: Final = "value"
FAILED: Final = "failed"


class TensorWorker(Actor):
    """Holds the tensors of one stream on one rank."""

    takes_main_thread = False

    def __init__(self, mesh: str, stream: str) -> None:
        self.stream = stream
        self.owner = f"tensors-{stream}"
        """Of process groups: what others do at the same time with the same ranks must not mix."""
        instance = context.context().actor_instance
        self.rank = instance.rank.rank
        self._sender = instance.owner[0]
        self.interpreter = Interpreter(mesh, self.rank, self._open_gate)
        self._taken = -1
        self._lane: torch.cuda.Stream | None = None
        self._gpu = _own_gpu()

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
        with self._beside_others():
            errors = self.interpreter.run(number, numbers.tolist())
        if errors:
            raise errors[0]

    @endpoint
    def lend(self, ref: int) -> tuple[str, object]:
        """Return a tensor itself, for an actor of the same process; or the cause, as `fetch`."""
        try:
            return VALUE, self.interpreter.values([ref])[0]
        except FailedInput as error:
            return FAILED, tuple(error.cause)

    def _open_gate(self, port: int, ticket: int) -> None:
        hosting = current.part(Hosting)
        hosting.undisturbed(
            functools.partial(hosting.gate.open, self._sender, port | ACTOR_BIT, ticket)
        )

    def _beside_others(self) -> contextlib.AbstractContextManager[object]:
        # What it asks of a GPU does not wait for what other streams have asked. PyTorch's current
        # GPU is the first one in each thread that says nothing
        if not torch.cuda.is_available():
            return contextlib.nullcontext()
        if self._gpu:
            torch.cuda.set_device(self._gpu)
        if self.stream == MAIN:
            return contextlib.nullcontext()
        if self._lane is None:
            self._lane = torch.cuda.Stream()
        lane: contextlib.AbstractContextManager[object] = torch.cuda.stream(self._lane)
        return lane

    @endpoint
    def fetch(
        self, refs: Sequence[int], is_wanted: bool, collect: Callable[[object], object]
    ) -> tuple[str, object]:
        """Return `("value", tensors)` where they are wanted, else without; or `("failed", cause)`.

        `collect` is what each rank does to a tensor first.
        """
        here.worker = self
        try:
            with self._beside_others():
                found = [collect(each) for each in self.interpreter.values(refs)]
                return VALUE, _pytree.tree_map(_at_home, found) if is_wanted else None
        except FailedInput as error:
            return FAILED, tuple(error.cause)


def _own_gpu() -> int:
    me = current.part(Membership).rank
    return 0 if me is None else torch.device(me.device).index or 0


def _at_home(leaf: object) -> object:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf
