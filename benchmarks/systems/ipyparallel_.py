"""ipyparallel: the engines of a local Cluster are the ranks, driven through direct views."""

from collections.abc import Callable
from typing import Any

import ipyparallel

from benchmarks import cells, measures, outputs, system, work

START_S = 200
NOTEBOOK = cells.Notebook(
    kernel="python3",
    setup=(
        "import ipyparallel",
        "cluster = ipyparallel.Cluster(n=4)",
        "ranks = cluster.start_and_connect_sync(activate=True)",
        "ranks[:].scatter('rank', range(4), flatten=True, block=True)",
    ),
    cell="%px 1+1",
    shows=r"(Out\[\d:\d+\]: 2.*){4}",
    teardown=("cluster.stop_cluster_sync()",),
)


class EngineRanks:
    def __init__(self, size: int) -> None:
        self.cluster = ipyparallel.Cluster(n=size, engine_timeout=START_S)
        self.client = self.cluster.start_and_connect_sync()
        self.all = self.client[:]

    def one(self, method: str) -> Callable[..., Any]:
        view, function = self.client[0], getattr(work, method)
        return lambda *args: view.apply_sync(function, *args)

    def each(self, method: str) -> Callable[..., list[Any]]:
        function = getattr(work, method)
        return lambda *args: self.all.apply_sync(function, *args)

    def flood(self, count: int) -> None:
        view = self.client[0]
        for answer in [view.apply_async(work.echo, i) for i in range(count)]:
            answer.get()

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        return self.client[rank].apply_async(getattr(work, method), *args).get

    def down(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


if __name__ == "__main__":
    system.main(
        measures.of_ranks(EngineRanks, "benchmarks.systems.ipyparallel_")
        | cells.measures(NOTEBOOK)
        | outputs.measures(NOTEBOOK, "%%px"),
        EngineRanks,
    )
