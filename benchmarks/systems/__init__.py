"""The systems and what each of them can be asked. One module per system; each is an adapter.

This table imports none of them: they run in processes of their own, peers under the interpreter
that has them.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["OURS", "RAW", "System", "peers"]

PEERS_TXT = Path(__file__).parent.parent / "peers.txt"


@dataclass(frozen=True)
class System:
    name: str  # in tables and on the command line
    module: str  # in this package
    distribution: str | None  # whose version is reported; None: nothing to install
    skips: tuple[str, ...] = ()  # beginnings of measures that mean nothing to it
    only: tuple[str, ...] = ("",)  # beginnings of measures that mean something to it

    def offers(self, measure: str) -> bool:
        return measure.startswith(self.only) and not (self.skips and measure.startswith(self.skips))


_OUTPUT = ("print", "paced", "interrupt")  # of cells
_STATUS = (
    "prompt",
    "debugger",
    "stacks",
    "mismatch",
    "waits",
    "silent",
    "board",
    "look",
    "view",
    "seen",
    "pan",
    "rdma",
    "beside",
    "peak",
    "kept_",
    "elastic_",
    "gpu",
    "remote_",
    "tensor_step",
    "tensor_matmul",
)  # what only we have
_TENSORS = ("tensor_",)  # of a tensor engine
_ACTORS = ("first_call", "broadcast", "owner_bare")  # of Monarch's API
_NOTEBOOK = ("cell", "tab", *_OUTPUT, "flood", *_STATUS)  # what only a notebook has

OURS = System("monarch_nb", "monarch_nb_", None, skips=("bare_",))
RAW = System(
    "raw",
    "raw",
    None,
    skips=("cell_first", "remote_cast"),
    only=("call", "flight", "cast_", "cell", "array_", "rdma", "gpu", "remote_", "spawn_", "kill"),
)

_PEERS = (
    System("torchmonarch", "monarch_", "torchmonarch", skips=_NOTEBOOK),
    System("ray", "ray_", "ray", skips=(*_NOTEBOOK, *_TENSORS, *_ACTORS)),
    System("distributed", "dask_", "distributed", skips=(*_NOTEBOOK, *_TENSORS, *_ACTORS)),
    System(
        "ipyparallel",
        "ipyparallel_",
        "ipyparallel",
        skips=("cell_first_64", "tab", "flood", *_STATUS, *_TENSORS, *_ACTORS),
    ),
    System(
        "nbdistributed",
        "nbdistributed_",
        "nbdistributed",
        skips=("cell_first_64",),
        only=("cell", *_OUTPUT),
    ),
)


def peers() -> list[System]:
    """Those that peers.txt names, in this table's order."""
    lines = [line.partition("#")[0].strip() for line in PEERS_TXT.read_text().splitlines()]
    named = {line.partition("==")[0] for line in lines}
    return [peer for peer in _PEERS if peer.name in named]
