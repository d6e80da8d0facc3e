"""`debug_controller`: an actor that programs ask who is stopped in a debugger.

Rule: it only tells; lines are typed at the prompts (`monarch-nb debug`, a notebook's cell). While
it is there, breakpoints stop: a program that asks wants to see them.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from monarch_nb.actors.definition import Actor, concurrent_endpoint, endpoint
from monarch_nb.control.client import client
from monarch_nb.meshes.states import place_of
from monarch_nb.services.controllers import get_or_spawn_controller

_COLUMNS = ("Actor Name", "Rank", "Coords", "Hostname", "Function", "Line No.")


@dataclass(frozen=True, order=True)
class DebugSessionInfo:
    """A rank that is stopped; in the order of actors and ranks."""

    actor_name: str
    rank: int
    coords: dict[str, int] = field(compare=False)
    hostname: str = field(compare=False)
    function: str | None = field(compare=False)
    lineno: int | None = field(compare=False)


class DebugController(Actor):
    """See `debug_controller`."""

    def __init__(self) -> None:
        self._service = client().debugging
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._undo = [self._service.listen(self._tell), self._service.take(lambda _stop: True)]

    @endpoint
    async def list(self, print_output: bool = True) -> list[DebugSessionInfo]:
        """Return who is stopped; also print it, as a table, where the controller runs."""
        found = sorted(self._infos())
        if print_output:
            print(_table(found), flush=True)  # noqa: T201  what it is for
        return found

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Return when a rank is stopped."""
        while not self._service.stops():
            self._changed.clear()
            if not self._service.stops():  # not one between the look and the clearing
                await self._changed.wait()

    async def __cleanup__(self, exc: Exception | None) -> None:  # type: ignore[override]  # async
        for undo in self._undo:
            undo()

    def _tell(self) -> None:
        # the inbox thread
        self._loop.call_soon_threadsafe(self._changed.set)

    def _infos(self) -> Iterator[DebugSessionInfo]:
        seen = client().snapshot()
        ranks = {(mesh.number, each.rank): each for mesh in seen.meshes for each in mesh.ranks}
        for stop in self._service.stops():
            place = place_of(self._service.supervision, stop.key[0])
            if (rank := ranks.get((place.number, place.rank))) is not None:
                yield DebugSessionInfo(
                    actor_name=stop.what,
                    rank=stop.rank,
                    coords=dict(rank.coords),
                    hostname=seen.hosts[rank.host].name,
                    function=stop.function,
                    lineno=stop.line,
                )


def debug_controller() -> DebugController:
    """Return the one actor, in the controller's process, that tells which ranks are stopped.

    Example:
        >>> debug_controller().wait_pending_session.call_one().get()     # doctest: +SKIP
        >>> [(s.rank, s.lineno) for s in debug_controller().list.call_one().get()]
        ...                                                              # doctest: +SKIP
    """
    return get_or_spawn_controller("debug_controller", DebugController).get()


def _table(found: list[DebugSessionInfo]) -> str:
    table = Table(*_COLUMNS)
    for each in found:
        place = str(each.coords)
        words = each.actor_name, each.rank, place, each.hostname, each.function, each.lineno
        table.add_row(*(str(word) for word in words))
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    return text.getvalue().rstrip("\n")
