"""monarch_nb, this project, over its public API."""

from functools import partial

import monarch_nb
from benchmarks import cells, measures, system
from benchmarks.measures import Figures, Scale
from benchmarks.systems.actor_api import ActorRanks, Api, probe_class
from monarch_nb import Actor, endpoint, shutdown_context, this_host

API = Api(Actor, endpoint, this_host)
NOTEBOOK = cells.Notebook(
    kernel="monarch",
    setup=("%mesh up --gpus 4",),
    cell="%%mesh\n1+1",
    check='%%mesh\nprint("at", rank)',
    shows="(?=.*at 0)(?=.*at 1)(?=.*at 2)(?=.*at 3)",
    teardown=("%mesh down",),
)


class OurRanks(ActorRanks):
    def wait_silent(self, rank: int, within_s: float) -> float | str:
        """Seconds from now until the status says that `rank` is silent."""
        raise NotImplementedError(f"not written: rank {rank}, {within_s:g} s")


def silent(up: measures.Up, _scale: Scale) -> Figures:
    """From SIGSTOP of a busy rank until its status says so."""
    raise NotImplementedError("the status API is not wired up in systems/monarch_nb_.py")


def main() -> None:
    monarch_nb.unhandled_fault_hook = lambda _failure: None  # it would end this process
    up = partial(OurRanks, API, probe_class(API))
    system.main(
        measures.of_ranks(up, "benchmarks.systems.monarch_nb_")
        | cells.measures(NOTEBOOK)
        | {"silent": partial(silent, up)},
        up,
        lambda: shutdown_context().get(),
    )


if __name__ == "__main__":
    main()
