"""What ranks and agents that were started for tests understand besides: to arm a fault, to count.

Rule: only a process whose settings say `testing` loads this. An agent's settings are those of its
host, and no message changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_nb.core.wire import pickling
from monarch_nb.core.wire.messages import codec
from monarch_nb.core.wire.messages.codec import Done
from monarch_nb.core.wire.messages.testing import CountFault, Fired, InjectFault
from monarch_nb.testing.armed import ArmedFault, faults, happen_at_start

if TYPE_CHECKING:
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.host.agent.events import Asker
    from monarch_nb.host.agent.mailbox import Request
    from monarch_nb.process.process import Proc, Serve

Handler = Callable[[Any, Any, Any], None]
Answer = Callable[["Asker", object], None]


def handlers_of_rank(proc: Proc) -> list[Serve]:
    """Return what a rank handles besides, and let happen what it was started with."""
    from monarch_nb.process.process import serve  # not in an agent

    def inject(wanted: InjectFault, message: Message) -> None:
        pickles = [bytes(each) for each in message.buffers]
        proc.answer(message, _inject(wanted, message.source, pickles))

    def count(wanted: CountFault, message: Message) -> None:
        proc.answer(message, _count(wanted, message.source))

    happen_at_start()
    return [serve(InjectFault, inject), serve(CountFault, count)]


def handlers_of_agent(answer: Answer) -> dict[str, tuple[type, Handler]]:
    """Return what an agent handles besides, by verbs: called with the agent, message, request."""

    def inject(_: object, wanted: InjectFault, request: Request) -> None:
        answer(request.asker, _inject(wanted, request.asker.process, request.buffers))

    def count(_: object, wanted: CountFault, request: Request) -> None:
        answer(request.asker, _count(wanted, request.asker.process))

    return {
        codec.verb_of(InjectFault): (InjectFault, inject),
        codec.verb_of(CountFault): (CountFault, count),
    }


def _inject(wanted: InjectFault, source: int, pickles: list[bytes]) -> Done:
    # the exception is unpickled where it is raised, in the thread of who passes the point
    error = partial(pickling.loads, pickles[-1]) if pickles else None
    fault = ArmedFault(
        wanted.at,
        wanted.action,
        wanted.seconds,
        after=wanted.after,
        times=wanted.times,
        error=error,
    )
    faults.arm((source, wanted.number), fault)
    return Done()


def _count(wanted: CountFault, source: int) -> Fired:
    return Fired(faults.count((source, wanted.number), remove=wanted.remove))
