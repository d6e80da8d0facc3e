"""monarch_nb, this project, over its public API; its status too, which only `silent` looks at."""

import os
import signal
import time
from functools import partial
from itertools import chain

import monarch_nb
from benchmarks import (
    boards,
    cells,
    debugging,
    elastic,
    gpu,
    growth,
    hangs,
    hosts,
    lasting,
    many_hosts,
    measures,
    outputs,
    prompts,
    system,
    tensors,
    transfers,
    views,
)
from benchmarks.measures import Figures, Scale
from benchmarks.systems.actor_api import ActorRanks, Api, broadcast, first_call, owner, probe_class
from benchmarks.timing import now
from monarch_nb import Actor, endpoint, shutdown_context, this_host
from monarch_nb.control.client import running_client

API = Api(Actor, endpoint, this_host)
NOTEBOOK = cells.Notebook(
    kernel="monarch",
    setup=("%mesh up --gpus 4",),
    cell="%%mesh\n1+1",
    check='%%mesh\nprint("at", rank)',
    shows="(?=.*at 0)(?=.*at 1)(?=.*at 2)(?=.*at 3)",
    teardown=("%mesh down",),
)

NOTEBOOK_16 = cells.Notebook(
    kernel="monarch",
    setup=(),
    cell="%%mesh\n1",
    shows=r"\[0-15\] 1",
    teardown=("%mesh down",),
)

NOTEBOOK_64 = cells.Notebook(
    kernel="monarch",
    setup=("%mesh up --gpus 64",),
    cell="%%mesh\nprint('on', len([rank]), 'of', world_size)",
    shows=r"\[0-63\] on 1 of 64",
    teardown=("%mesh down",),
)

LOOK_AGAIN_S = 0.01  # the snapshot is something that one looks at: it calls nobody


def silent(up: measures.Up, _scale: Scale) -> Figures:
    """From SIGSTOP of a busy rank until its status says so."""
    pid, _ = measures.busy_rank(up(2))
    process = os.pidfd_open(pid)
    if (before := state_of(pid)) != "busy":
        return {"time": f"the status of a busy rank is {before!r}"}
    start = now()
    signal.pidfd_send_signal(process, signal.SIGSTOP)
    try:
        while now() - start < measures.FAULT_S:
            if state_of(pid) == "silent":
                return {"time": now() - start}
            time.sleep(LOOK_AGAIN_S)
    finally:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    return {"time": f"not within {measures.FAULT_S:g} s, it says {state_of(pid)!r}"}


def state_of(pid: int) -> str | None:
    """What the status says of the rank that is this process."""
    client = running_client()
    ranks = chain.from_iterable(mesh.ranks for mesh in client.snapshot().meshes) if client else ()
    return next((rank.state for rank in ranks if rank.pid == pid), None)


def seen(scale: Scale) -> Figures:
    """As `pixels.seen`."""
    from benchmarks import pixels  # a browser, which no other measure needs

    return pixels.seen(scale)


def pan(scale: Scale) -> Figures:
    """As `panning.pan`."""
    from benchmarks import panning  # as in `seen`

    return panning.pan(scale)


def main() -> None:
    monarch_nb.unhandled_fault_hook = lambda _failure: None  # it would end this process
    up = partial(ActorRanks, API, probe_class(API))
    system.main(
        measures.of_ranks(up, "benchmarks.systems.monarch_nb_")
        | cells.measures(NOTEBOOK)
        | outputs.measures(NOTEBOOK, "%%mesh")
        | {
            "cell_first_64": partial(cells.first, NOTEBOOK_64),
            "tab": partial(cells.tab, NOTEBOOK),
            "prompt": partial(prompts.prompt, NOTEBOOK, NOTEBOOK_16),
            "debugger": partial(debugging.debugger, NOTEBOOK),
            "stacks": partial(hangs.stacks, NOTEBOOK_16),
            "mismatch": partial(hangs.mismatch, NOTEBOOK),
            "waits": partial(hangs.waits, NOTEBOOK_16),
            "kept_restart": lasting.kept_restart,
            "kept_lines": lasting.kept_lines,
            "elastic_kill": partial(elastic.kill, NOTEBOOK),
            "elastic_cost": partial(elastic.cost, NOTEBOOK),
            "elastic_snapshots": partial(elastic.snapshots, NOTEBOOK),
            "flood": partial(outputs.flood, NOTEBOOK),
            "broadcast": partial(broadcast, API),
            "first_call": partial(first_call, "monarch_nb"),
            "owner_bare": partial(owner, "monarch_nb"),
            "rdma": transfers.rdma,
            "beside": transfers.beside,
            "peak": transfers.peak,
            "remote_call": hosts.remote_call,
            "remote_cast": hosts.remote_cast,
            "remote_data": hosts.remote_data,
            "remote_up": hosts.remote_up,
            "many_hosts": many_hosts.many_hosts,
            "growth": growth.growth,
            "gpu": gpu.copies,
            "gpu_ranks": gpu.ranks,
            "tensor_ops": tensors.operations,
            "tensor_step": tensors.step,
            "tensor_matmul": tensors.matmul,
            "silent": partial(silent, up),
            "board": boards.cost,
            "look": boards.look,
            "view": partial(views.cost, NOTEBOOK_64),
            "seen": seen,
            "pan": pan,
        },
        up,
        lambda: shutdown_context().get(),
    )


if __name__ == "__main__":
    main()
