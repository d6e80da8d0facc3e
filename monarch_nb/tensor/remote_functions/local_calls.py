"""A call to an actor of the own process: nothing that goes there or comes back is copied."""

from __future__ import annotations

from typing import Any

from monarch_nb.actors.endpoints import Members
from monarch_nb.actors.hosting import Hosting
from monarch_nb.core.wire.frames import CALL, GATE_BIT
from monarch_nb.process import context, current
from monarch_nb.process.futures.calls import SingleCall
from monarch_nb.process.futures.future import make
from monarch_nb.tensor.commands.propagation import Args, Kwargs


def ask_here(
    actors: Members,
    method: str,
    args: Args,
    kwargs: Kwargs,
    explicit: bool | None = None,
    prefix: bytes = b"",
) -> object:
    """Return what an endpoint returns of those of some actors that lives in this process.

    What must not be copied among the arguments is given as `Handed`. With a `prefix` the call goes
    by the gate of the actor.
    """
    proc, hosting = current.proc(), current.part(Hosting)
    whole, tag = actors._target(method), context.current_tag()
    index = whole.processes.index(proc.id)
    payload, port = proc.encode((method, args, kwargs, *whole.extent, explicit), ()), whole.port
    if prefix:
        payload, port = payload.behind(prefix), port | GATE_BIT
    call: Any = make(SingleCall)
    call._begin(proc, whole.member(index), tag)
    uncopied = hosting.uncopied
    uncopied[call.port] = None

    def send() -> None:
        proc.send(proc.id, CALL, port, payload, reply=call.port, rank=index, tag=tag)

    try:
        hosting.undisturbed(send)
        return call.get()
    finally:
        if (answer := uncopied.pop(call.port, None)) is not None:
            answer.let_go()
