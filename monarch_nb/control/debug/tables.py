"""What a debugger's prompt shows of many ranks: a table of those that are stopped, their calls."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from monarch_nb.control.debug.sessions import Stop
from monarch_nb.core.hangs.stack_tree import Stack


def who_is_stopped(rows: Sequence[tuple[Stop, str, str]]) -> str:
    """A line for each stop; it comes with the coordinates of its rank and its place in words."""
    table = Table(box=None, header_style="", pad_edge=False)
    several = len({stop.mesh for stop, _, _ in rows}) > 1
    for name in (*(["mesh"] if several else []), "rank", "coords", "runs", "at", "for"):
        table.add_column(name)
    now = time.monotonic()
    for stop, coords, place in rows:
        mesh = [stop.mesh] if several else []
        table.add_row(*mesh, str(stop.rank), coords, stop.what, place, f"{now - stop.at:.0f} s")
    return _plain(table)


def calls(of_rank: Iterable[Stack]) -> str:
    """Stacks as pdb writes them."""
    lines = [
        line
        for stack in of_rank
        for line in (
            *([f"{stack.thread}:"] if stack.thread else []),
            *(f"  {each.file}({each.line}){each.function}()" for each in stack.frames),
        )
    ]
    return "".join(f"{line}\n" for line in lines) or "idle\n"


def _plain(table: Table) -> str:
    """As text of any width, without colours."""
    console = Console(
        file=io.StringIO(), width=200, color_system=None, highlight=False, force_jupyter=False
    )
    console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
