"""torchmonarch: Monarch itself, over its own actor API."""

from functools import partial

import monarch.actor
from monarch.actor import Actor, endpoint, shutdown_context, this_host

from benchmarks import measures, system
from benchmarks.systems.actor_api import ActorRanks, Api, probe_class

API = Api(Actor, endpoint, this_host)


def main() -> None:
    monarch.actor.unhandled_fault_hook = lambda _failure: None  # it would end this process
    up = partial(ActorRanks, API, probe_class(API))
    system.main(
        measures.of_ranks(up, "benchmarks.systems.monarch_"),
        up,
        lambda: shutdown_context().get(),
    )


if __name__ == "__main__":
    main()
