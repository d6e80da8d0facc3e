"""What a user may say about how processes are started: environment, processors.

Checked here, done by the host.

Ranks are forks of a warm process, so a command chooses their environment and nothing else.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from monarch_nb.core.shape import Extent, Point

Environment = dict[str, str | None]
_PROCESSORS: Final = ("cpus", "physcpubind")
BIND_KEYS: Final = frozenset({*_PROCESSORS, "cpunodebind", "membind"})


@final
@dataclasses.dataclass(frozen=True)
class BootstrapCommand:
    """How processes are started: environment changes for the ranks, on top of the host's.

    `with_env({"K": "v"})` adds, `with_env({"K": None})` removes; `inherit_env=False` starts from
    nothing. `program`, `arg0` and `args` must be this Python's (`default_bootstrap_cmd()`): ranks
    are forked from a warm process, not started.
    """

    program: str = sys.executable
    arg0: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    inherit_env: bool = True

    def with_env(self, env: Mapping[str, str | None] | None) -> BootstrapCommand:
        """A copy with these variables set, or removed where None."""
        return dataclasses.replace(self, env={**self.env, **(env or {})})


Command = BootstrapCommand | Callable[[Point], BootstrapCommand]


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts ranks here."""
    return BootstrapCommand()


def environments(
    extent: Extent, command: Command | None, env: Mapping[str, str | None] | None
) -> list[Environment]:
    """Changes to the host's environment, for each rank."""
    return [
        {**_environment(command, Point(rank, extent)), **(env or {})}
        for rank in range(extent.nelements)
    ]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Environment:
    """What turns one environment into another."""
    gone: Environment = {name: None for name in before if name not in now}
    return gone | {name: value for name, value in now.items() if before.get(name) != value}


def _environment(command: Command | None, point: Point) -> Environment:
    if command is None:
        return {}
    chosen = command if isinstance(command, BootstrapCommand) else command(point)
    if not isinstance(chosen, BootstrapCommand):
        raise TypeError(f"bootstrap_command must give a BootstrapCommand, not {chosen!r}")
    if os.path.realpath(chosen.program) != os.path.realpath(sys.executable) or chosen.args:
        raise ValueError(
            f"ranks are forks of this interpreter, they cannot run {chosen.program} "
            f"{' '.join(chosen.args)}; use default_bootstrap_cmd().with_env(...)"
        )
    base: Environment = {} if chosen.inherit_env else dict.fromkeys(os.environ)
    return {**base, **chosen.env}


def bindings(
    bind: Sequence[Mapping[str, str]] | None, count: int
) -> list[dict[str, list[int]]] | None:
    """`proc_bind` as numbers of processors and of memory nodes. Raises `ValueError`."""
    if bind is None:
        return None
    if len(bind) != count:
        raise ValueError(f"proc_bind length ({len(bind)}) must equal procs_per_host ({count})")
    return [_binding(each) for each in bind]


def _binding(wanted: Mapping[str, str]) -> dict[str, list[int]]:
    unknown = set(wanted) - BIND_KEYS
    if unknown:
        raise ValueError(f"proc_bind knows {sorted(BIND_KEYS)}, not {sorted(unknown)}")
    numbers = {key: _numbers(key, text) for key, text in wanted.items()}
    return {
        "cpus": [number for key in _PROCESSORS for number in numbers.get(key, ())],
        "nodes": numbers.get("cpunodebind", []),
        "memory": numbers.get("membind", []),
    }


def _numbers(key: str, text: str) -> list[int]:
    """`0,2-3` as taskset and numactl read it."""
    found: list[int] = []
    for piece in str(text).split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"proc_bind: {key}={text!r} is no list of numbers such as '0,2-3'")
        run = range(int(first), int(last or first) + 1)
        if not run:
            raise ValueError(f"proc_bind: {key}={text!r} is no list of numbers such as '0,2-3'")
        found += run
    return found
