"""Dask distributed: one actor on each worker of a LocalCluster, which is the set of ranks."""

from collections.abc import Callable
from typing import Any

from distributed import Client, LocalCluster

from benchmarks import measures, system, work

START_S = 200


class Probe:
    def run(self, method: str, *args: Any) -> Any:
        return getattr(work, method)(*args)


class DaskRanks:
    def __init__(self, size: int) -> None:
        self.cluster = LocalCluster(
            n_workers=size,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=None,
        )
        self.client = Client(self.cluster)
        self.client.wait_for_workers(size, timeout=START_S)
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        futures = [
            self.client.submit(Probe, actor=True, workers=[address], pure=False)
            for address in workers
        ]
        self.actors = [future.result() for future in futures]

    def one(self, method: str) -> Callable[..., Any]:
        run = self.actors[0].run
        return lambda *args: run(method, *args).result()

    def each(self, method: str) -> Callable[..., list[Any]]:
        def call(*args: Any) -> list[Any]:
            futures = [actor.run(method, *args) for actor in self.actors]
            return [future.result() for future in futures]

        return call

    def flood(self, count: int) -> None:
        run = self.actors[0].run
        for future in [run("echo", i) for i in range(count)]:
            future.result()

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        return self.actors[rank].run(method, *args).result

    def down(self) -> None:
        self.client.close()
        self.cluster.close()


if __name__ == "__main__":
    system.main(measures.of_ranks(DaskRanks, "benchmarks.systems.dask_"), DaskRanks)
