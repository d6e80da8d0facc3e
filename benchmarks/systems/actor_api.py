"""Monarch's actor API, served by Monarch and by monarch_nb: one adapter for both.

Knows only the public names, which it is given; that both systems run it is itself a check.
Endpoints are plain `def`: Monarch is faster with these than with `async def`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import work


@dataclass(frozen=True)
class Api:
    actor: type
    endpoint: Callable[..., Any]
    this_host: Callable[[], Any]


def probe_class(api: Api) -> type:
    """An actor class with every function of work.py as an endpoint."""

    def endpoint_of(method: str) -> Any:
        function = getattr(work, method)

        def run(_self: Any, *args: Any) -> Any:
            return function(*args)

        run.__name__ = method
        return api.endpoint(run)

    return type("Probe", (api.actor,), {name: endpoint_of(name) for name in work.METHODS})


class ActorRanks:
    def __init__(self, api: Api, probe: type, size: int) -> None:
        self.procs = api.this_host().spawn_procs(per_host={"gpus": size})
        self.mesh = self.procs.spawn("probe", probe)

    def one(self, method: str) -> Callable[..., Any]:
        first = self.mesh.slice(gpus=0)
        return lambda *args: getattr(first, method).call_one(*args).get()

    def each(self, method: str) -> Callable[..., list[Any]]:
        return lambda *args: list(getattr(self.mesh, method).call(*args).get().values())

    def flood(self, count: int) -> None:
        echo = self.mesh.slice(gpus=0).echo
        for future in [echo.call_one(i) for i in range(count)]:
            future.get()

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        return getattr(self.mesh.slice(gpus=rank), method).call_one(*args).get

    def down(self) -> None:
        self.procs.stop().get()
