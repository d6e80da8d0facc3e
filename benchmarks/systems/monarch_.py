"""torchmonarch: Monarch itself, over its own actor API."""

from functools import partial

import monarch
import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host

from benchmarks import measures, system
from benchmarks.measures import Figures, Scale
from benchmarks.systems.actor_api import ActorRanks, Api, broadcast, first_call, owner, probe_class

RANKS, OPERATIONS = 4, 500

API = Api(Actor, endpoint, this_host)


def operations(scale: Scale) -> Figures:
    """As of ours, fewer, since each takes longer."""
    mesh = this_host().spawn_procs(per_host={"gpus": RANKS})
    return measures.tensor_rate(mesh, monarch.inspect, OPERATIONS, min(scale.floods, 3))


def main() -> None:
    monarch.actor.unhandled_fault_hook = lambda _failure: None  # it would end this process
    up = partial(ActorRanks, API, probe_class(API))
    system.main(
        measures.of_ranks(up, "benchmarks.systems.monarch_")
        | {
            "tensor_ops": operations,
            "broadcast": partial(broadcast, API),
            "first_call": partial(first_call, "monarch.actor"),
            "owner_bare": partial(owner, "monarch.actor"),
        },
        up,
        lambda: shutdown_context().get(),
    )


if __name__ == "__main__":
    main()
