"""What a user may say about how processes are started: command, environment, processors.

Checked here, done by the host. Ranks are forks of a warm process, unless a command names anything
else than this interpreter: then each is started by that command, which takes seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from monarch_nb.config import RANK_COMMAND, VERSION
from monarch_nb.core.shape.extent import Extent, Point

Environment = dict[str, str | None]
_PROCESSORS: Final = ("cpus", "physcpubind")
_ENTRY: Final = tuple(RANK_COMMAND.split())
_STARTED_BY: Final = "MONARCH_NB_STARTED_BY"  # what started this rank instead of its host's Python
_MONARCHS_ENTRY: Final = ("-m", "monarch._src.actor.bootstrap_main")
BIND_KEYS: Final = frozenset({*_PROCESSORS, "cpunodebind", "membind"})


@final
@dataclasses.dataclass(frozen=True)
class BootstrapCommand:
    """How processes are started: a command line, and changes to the host's environment.

    `program` and `args` are the whole command line, `arg0` is its argv[0] where that is not the
    program (a Python in a venv finds its packages by that). Any program will do that in the end
    executes what `default_bootstrap_cmd()` shows, and hands its environment on. That default
    itself, and this interpreter without arguments, start nothing: such ranks are forks of a warm
    process. `with_env({"K": "v"})` adds to the environment, `with_env({"K": None})` removes,
    `inherit_env=False` starts from nothing. With `own_gpu` each process sees one GPU of its host,
    shared in turn by more processes than GPUs.

    Example:
        >>> plain = default_bootstrap_cmd()
        >>> args = ("-n5", plain.program, *plain.args)
        >>> niced = dataclasses.replace(plain, program="nice", args=args)   # doctest: +SKIP
    """

    program: str = sys.executable
    arg0: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    inherit_env: bool = True
    own_gpu: bool = False

    def with_env(self, env: Mapping[str, str | None] | None) -> BootstrapCommand:
        """Return a copy with these variables set, or removed where None."""
        return dataclasses.replace(self, env={**self.env, **(env or {})})


Command = BootstrapCommand | Callable[[Point], BootstrapCommand]


class Start(NamedTuple):
    """How one rank is started. `line`: the program and its argv, or None for a fork; `own_gpu`: it
    sees one only."""

    env: Environment
    line: list[str] | None
    own_gpu: bool = False


def default_bootstrap_cmd() -> BootstrapCommand:
    """Return the command that starts ranks here, where they are not forked."""
    return python_command(sys.executable)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Environment:
    gone: Environment = {name: None for name in before if name not in now}
    return gone | {name: value for name, value in now.items() if before.get(name) != value}


def python_command(path: str) -> BootstrapCommand:
    return BootstrapCommand(path, args=_ENTRY)


def other_python_command(path: str) -> BootstrapCommand:
    """Return the command that starts ranks with another interpreter; so do those in their turn."""
    return python_command(path).with_env({_STARTED_BY: path})


def started_by() -> str | None:
    """Return what ranks are started with here, as this one was; None: they are forked."""
    return os.environ.get(_STARTED_BY)


def is_this_python(path: str) -> bool:
    """Tell whether it is this interpreter in this environment: a venv's is a link to another's."""
    mine, other = Path(sys.executable), Path(path)
    return other == mine or (
        other.is_absolute()
        and other.parent.resolve() == mine.parent.resolve()
        and other.resolve() == mine.resolve()
    )


def starts(extent: Extent, command: Command, env: Mapping[str, str | None] | None) -> list[Start]:
    chosen = [_chosen(command, Point(rank, extent)) for rank in range(extent.nelements)]
    return [
        Start({**_environment(each), **(env or {})}, _line(each), each.own_gpu) for each in chosen
    ]


def check_programs(starts: Iterable[Start]) -> None:
    """Raise `ValueError` for a program that is not there, on this host."""
    wanted = {
        (start.line[0], start.env.get("PATH", os.environ.get("PATH")) or os.defpath)
        for start in starts
        if start.line is not None
    }
    for program, paths in wanted:
        if shutil.which(program, path=paths) is None:
            raise ValueError(
                f"ranks cannot be started by {program!r}: there is no such program, or it may not "
                "be executed"
            )


def this_python() -> dict[str, Any]:
    return {
        "version": list(sys.version_info[:3]),
        "monarch_nb": VERSION,
        "prefix": sys.prefix,
        "path": [each or str(Path.cwd()) for each in sys.path if not _is_library(Path(each))],
    }


def _is_library(entry: Path) -> bool:
    packed = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    return (
        entry.name == packed
        or not {"site-packages", "dist-packages"}.isdisjoint(entry.parts)
        or any(entry.is_relative_to(folder) for folder in _standard_library())
    )


@functools.cache
def _standard_library() -> list[str]:
    return [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]


def _chosen(command: Command, point: Point) -> BootstrapCommand:
    chosen = command if isinstance(command, BootstrapCommand) else command(point)
    if not isinstance(chosen, BootstrapCommand):
        raise TypeError(f"bootstrap_command must give a BootstrapCommand, not {chosen!r}")
    return chosen


def _environment(command: BootstrapCommand) -> Environment:
    base: Environment = {} if command.inherit_env else dict.fromkeys(os.environ)
    return {**base, **command.env}


def _line(command: BootstrapCommand) -> list[str] | None:
    args = _with_our_entry(tuple(command.args))
    is_forked = started_by() is None and is_this_python(command.program)
    if is_forked and args in {(), _ENTRY} and command.arg0 is None:
        return None
    program = os.fspath(command.program)
    return [program, command.arg0 or program, *args]


def _with_our_entry(args: tuple[str, ...]) -> tuple[str, ...]:
    for at in range(len(args) - 1):
        if args[at : at + 2] == _MONARCHS_ENTRY:
            return args[:at] + _ENTRY + args[at + 2 :]
    return args


def bindings(
    bind: Sequence[Mapping[str, str]] | None, count: int
) -> list[dict[str, list[int]]] | None:
    """Return `proc_bind` as numbers of processors and of memory nodes. Raises `ValueError`."""
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
    found: list[int] = []
    for piece in str(text).split(","):
        first, dash, last = piece.strip().partition("-")
        is_run = first.isdecimal() and (last.isdecimal() or not dash)
        run = range(int(first), int(last or first) + 1) if is_run else ()
        if not run:
            raise ValueError(f"proc_bind: {key}={text!r} is no list of numbers such as '0,2-3'")
        found += run
    return found
