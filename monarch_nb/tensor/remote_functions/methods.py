"""Endpoints of actors as functions that ranks run in turn with the operations of torch.

Rules: each actor gets what its own rank has, when the rank has come so far, and what follows waits
for its answer; so the actors are those of the ranks where the tensors are. Between the stream and
the actor, which are threads of one process, nothing is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from monarch_nb.actors.endpoints import Endpoint
from monarch_nb.actors.hosting import Hosting
from monarch_nb.core.wire.frames import CALL
from monarch_nb.process import context, current
from monarch_nb.process.futures.calls import SingleCall
from monarch_nb.process.futures.future import make
from monarch_nb.process.payloads import Handed
from monarch_nb.tensor.engine.batches import Home


class Method:
    """An endpoint of some actors; called on a rank, that of the actor there."""

    def __init__(self, endpoint: Endpoint[..., Any]) -> None:
        self._mesh = endpoint._mesh
        self._name = endpoint._name
        self._explicit = endpoint._explicit
        self.__name__ = f"{self._mesh.name}.{self._name}"

    def check(self, home: Home) -> None:
        """Raises `ValueError` unless its actors live on exactly the ranks of a home."""
        if self._mesh._target(self._name).processes != home.target().processes:
            raise ValueError(
                f"{self.__name__} runs where its tensors are, on {home.words()}; {self._mesh.name} "
                "lives on other ranks. Call it on a slice of the actors, or with a slice of the "
                "tensors: t.slice_mesh(...)"
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        handed: list[Handed] = []

        def hand(leaf: object) -> object:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            handed.append(Handed(leaf))
            return handed[-1]

        given, named = _pytree.tree_map(hand, (args, kwargs))
        try:
            return self._ask(given, named)
        finally:
            for each in handed:
                each.let_go()

    def _ask(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        proc, uncopied = current.proc(), current.part(Hosting).uncopied
        whole, tag = self._mesh._target(self._name), context.current_tag()
        index = whole.processes.index(proc.id)
        content = (self._name, args, kwargs, *whole.extent, self._explicit)
        parcel = proc.encode(content, ())
        call: Any = make(SingleCall)
        call._begin(proc, whole.member(index), tag)
        uncopied[call.port] = None
        try:
            proc.send(proc.id, CALL, whole.port, parcel, reply=call.port, rank=index, tag=tag)
            return call.get()
        finally:
            if (answer := uncopied.pop(call.port, None)) is not None:
                answer.let_go()
