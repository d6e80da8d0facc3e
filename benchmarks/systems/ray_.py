"""Ray: one actor per rank in a local cluster, started with the first ranks of a process."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported

import ray

from benchmarks import measures, system, work

STORE_BYTES = 3 * 1024**3


@ray.remote(num_cpus=0)
class Probe:
    def run(self, method: str, *args: Any) -> Any:
        return getattr(work, method)(*args)


class RayRanks:
    def __init__(self, size: int) -> None:
        if not ray.is_initialized():
            _start()
        self.actors = [Probe.remote() for _ in range(size)]

    def one(self, method: str) -> Callable[..., Any]:
        run = self.actors[0].run
        return lambda *args: ray.get(run.remote(method, *args))

    def each(self, method: str) -> Callable[..., list[Any]]:
        def call(*args: Any) -> Any:
            shared = [ray.put(arg) if hasattr(arg, "nbytes") else arg for arg in args]
            return ray.get([actor.run.remote(method, *shared) for actor in self.actors])

        return call

    def flood(self, count: int) -> None:
        run = self.actors[0].run
        ray.get([run.remote("echo", i) for i in range(count)])

    def start(self, rank: int, method: str, *args: Any) -> Callable[[], Any]:
        answer = self.actors[rank].run.remote(method, *args)
        return lambda: ray.get(answer)

    def down(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def _start() -> None:
    ray.init(
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        _temp_dir=os.path.join(tempfile.gettempdir(), "ray"),  # noqa: PTH118
    )


if __name__ == "__main__":
    system.main(measures.of_ranks(RayRanks, "benchmarks.systems.ray_"), RayRanks, ray.shutdown)
