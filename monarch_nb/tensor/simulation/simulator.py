"""`Simulator`: a mesh without processes, to see what a program would do on one.

Rule: it tells what it has seen (the ledger) to people and to programs; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.tensor.meshes.device_mesh import DeviceMesh
from monarch_nb.tensor.simulation.engine import simulated
from monarch_nb.tensor.simulation.ledger import Command, Memory

_ACCEPTED: Final = (
    "build_ir",
    "command_history_path",
    "group_workers",
    "simulate_mode",
    "trace_mode",
    "trace_path",
    "upload_trace",
)
_HEADINGS: Final = ("", "command", "makes", "ranks", "stream", "each sends", "memory", "line")


class Simulator:
    """A mesh of as many ranks as wanted, which are told nothing: shapes, errors of shapes, the
    commands, what is sent and the memory are those of a real mesh. What is fetched are zeros.

    Args:
        hosts: the size of the axis `host` of `mesh`.
        gpus: of its axis `gpu`.
        settings: of Monarch's simulator, accepted: there is one kind here.

    Raises `TypeError` for a setting that Monarch has not.

    Example:
        >>> simulator = Simulator(hosts=2, gpus=8)               # doctest: +SKIP
        >>> with simulator.mesh.activate():                      # doctest: +SKIP
        ...     train(Model())
        >>> simulator.display()                                  # doctest: +SKIP

    Name and meaning are Monarch's; it shows a table instead of traces.
    """

    def __init__(self, hosts: int = 1, gpus: int = 1, **settings: object) -> None:
        if unknown := sorted(settings.keys() - set(_ACCEPTED)):
            raise TypeError(f"Simulator has no setting {unknown[0]!r}")
        procs, self._engine = simulated("simulator", {"host": hosts, "gpu": gpus})
        self.mesh = DeviceMesh(procs)

    @property
    def commands(self) -> tuple[Command, ...]:
        """Return what the ranks were told, in order."""
        return tuple(self._engine.ledger.commands)

    @property
    def memory(self) -> list[Memory]:
        """By rank, the bytes of the tensors there."""
        self._engine.settle()
        return self._engine.ledger.memory

    def to_dict(self) -> dict[str, Any]:
        """Return commands and memory as plain data, for JSON."""
        return {
            "commands": [
                {**each._asdict(), "site": each.site.words(), "ranks": list(each.ranks)}
                for each in self.commands
            ],
            "memory": [each._asdict() for each in self.memory],
        }

    def to_table(self) -> str:
        """Write the commands, one a line, and the memory of each rank."""
        rows = [_HEADINGS, *(_row(*each) for each in enumerate(self.commands))]
        return "\n".join([*_in_columns(rows), "", *self._memory_lines()])

    def display(self) -> None:
        """Print the table."""
        print(self.to_table())  # noqa: T201  what it is for

    def _memory_lines(self) -> list[str]:
        ranks: dict[Memory, list[int]] = {}
        for rank, memory in enumerate(self.memory):
            ranks.setdefault(memory, []).append(rank)
        return [
            f"{rank_words(found)}: {_size(memory.now)} of tensors, {_size(memory.peak)} at most"
            for memory, found in ranks.items()
        ]

    def __repr__(self) -> str:
        return f"<Simulator of {dict(self.mesh.sizes)}, {len(self.commands)} commands>"


def _row(number: int, command: Command) -> tuple[str, ...]:
    return (
        str(number),
        command.name,
        ", ".join(command.makes),
        rank_words(list(command.ranks)),
        command.stream,
        _size(command.sends) if command.sends else "",
        _size(command.memory),
        command.site.words(),
    )


def _in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
