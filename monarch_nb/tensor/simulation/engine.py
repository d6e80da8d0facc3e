"""An engine whose commands are noted instead of sent.

Rule: all above it is as with ranks: shapes, autograd, streams, loans, errors of a wrong shape. What
is fetched are zeros, since nothing is computed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch

from monarch_nb.actors.gate import Ticket
from monarch_nb.core.shape.extent import Extent
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.meshes.states import ActorsState, ProcsState
from monarch_nb.process.futures.calls import GatherCall, Target
from monarch_nb.tensor.commands.call_sites import call_sites
from monarch_nb.tensor.commands.metadata import TensorMeta
from monarch_nb.tensor.commands.templates import MAIN, Definition
from monarch_nb.tensor.engine.batches import Engine, Home
from monarch_nb.tensor.meshes.active import no_mesh
from monarch_nb.tensor.moving.fetching import FetchCall
from monarch_nb.tensor.ranks.tensor_worker import TensorWorker
from monarch_nb.tensor.simulation.devices import WithoutGpus
from monarch_nb.tensor.simulation.ledger import Ledger
from monarch_nb.tensor.tensor_class import Tensor

C = TypeVar("C", bound=GatherCall)
_SHARING: Final = ("borrow", "slice_mesh")


class SimulatedEngine(Engine):
    """One stream of a simulated mesh."""

    def __init__(
        self, procs: ProcsState, stream: str, kind: type[torch.Tensor], ledger: Ledger
    ) -> None:
        self.ledger = ledger
        super().__init__(procs, stream, kind)

    def _started_workers(self) -> ActorsState:
        procs = self.procs
        return ActorsState(
            number=0,
            name=procs.name,
            shape=procs.shape,
            processes=procs.processes,
            wrap=lambda _state: None,
            cls=TensorWorker,
            procs=procs,
        )

    def beside(self, stream: str) -> Engine:
        """Make that of another stream, with the same ledger."""
        return SimulatedEngine(self.procs, stream, self.kind, self.ledger)

    def modes(self) -> list[contextlib.AbstractContextManager[object]]:
        """Return what has GPUs simulated too, where there are none."""
        return [] if torch.cuda.is_available() else [WithoutGpus()]

    def issue(
        self,
        home: Home,
        definition: Definition,
        numbers: list[int],
        new: Sequence[TensorMeta],
        ticket: Ticket | None = None,
    ) -> None:
        """Note the command."""
        del ticket
        site = call_sites.of(call_sites.current())
        name = definition.name or _name(definition.target)
        inputs = numbers[1 : 1 + definition.inputs]
        refs = numbers[len(numbers) - len(new) :]
        shared = (inputs or [0])[0] if _shares(definition.target, name) else None
        with self.ledger.lock:
            self.settle()
            self.ledger.add(
                name,
                home.ranks,
                self.stream,
                list(zip(refs, new, strict=True)),
                shared,
                definition.moves,
                site,
            )

    def settle(self) -> None:
        """Note what the controller has let go of."""
        with self.ledger.lock:
            for stream in list(self.procs.streams.values()):
                assert isinstance(stream, SimulatedEngine)
                for home in list(stream._homes.values()):
                    while home.freed:
                        self.ledger.free(home.freed.popleft())

    def flush(self) -> None:
        """Do nothing: nobody is waited for."""

    def wake(self) -> None:
        """Do nothing: what is let go of is noted with the next command."""

    def ask(self, target: Target, call: C, contents: Callable[[int], tuple[object, ...]]) -> C:
        """Answer what is fetched with zeros."""
        assert isinstance(call, FetchCall)
        answers: list[list[Any]] = []
        for index in range(len(target.processes)):
            refs, wanted, _ = contents(index)
            answers.append([self._zeros(ref) for ref in refs] if wanted else [])  # type: ignore[attr-defined]  # a list
        call._set_result(call._rebuild(answers))
        return call

    def _zeros(self, ref: int) -> torch.Tensor:
        meta = self.ledger.metas.get(ref)
        if meta is None:
            raise RuntimeError(
                f"what a function returns is not known on {self.procs.name!r}, which is simulated: "
                "nothing runs there"
            )
        with no_mesh.activate():
            return torch.zeros(meta.sizes, dtype=meta.dtype, device="cpu")


def simulated(name: str, sizes: dict[str, int]) -> tuple[ProcMesh, SimulatedEngine]:
    """Make a mesh that has no processes, and its engine."""
    extent = Extent(list(sizes), list(sizes.values()))
    state = ProcsState(
        agents=[0] * extent.nelements,
        number=0,
        name=name,
        shape=extent.region.as_shape(),
        processes=list(range(extent.nelements)),
        owned=True,
        wrap=lambda state: ProcMesh(state, state.shape),
    )
    state.end("it is simulated, and has no processes")  # for all but tensors
    engine = SimulatedEngine(state, MAIN, Tensor, Ledger(extent.nelements))
    state.streams[MAIN] = engine
    return ProcMesh(state, state.shape), engine


def _name(target: str | bytes | Callable[..., object]) -> str:
    if isinstance(target, bytes):
        return "a function"
    return target if isinstance(target, str) else target.__name__.strip("_")


@functools.cache
def _shares(target: str | bytes | Callable[..., object], name: str) -> bool:
    if not isinstance(target, str):
        return name in _SHARING
    operation: Any = functools.reduce(getattr, target.split("."), torch.ops)
    return any(each.alias_info is not None for each in operation._schema.returns)
