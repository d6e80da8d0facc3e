"""What ranks tell of themselves when they are asked: actors, what runs, errors.

See `ask_all.py` for how long that takes. Not to be called in the inbox thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.core.wire.messages.status import GetDetails, RankDetails
from monarch_nb.process.futures import ask_all

if TYPE_CHECKING:
    from monarch_nb.meshes.states import ProcsState
    from monarch_nb.process.process import Proc

_OUR_CLASSES: Final = "monarch_nb."


def ask(proc: Proc, sinces: Mapping[int, int], timeout_s: float) -> dict[int, RankDetails]:
    """Ask processes what they tell of themselves.

    Args:
        sinces: processes, each with the number of the last error of its that is known.
    """
    requests = {process: GetDetails(since) for process, since in sinces.items()}
    return ask_all.ask(proc, requests, timeout_s)


def actors_of(details: RankDetails) -> list[dict[str, Any]]:
    """Return the actors of a rank that are the user's: name, cls, calls, failed, queue, current."""
    found = []
    for each in details.actors:
        if not each.cls.startswith(_OUR_CLASSES):
            told = each._replace(cls=each.cls.rpartition(".")[2])._asdict()
            del told["port"]
            found.append(told)
    return found


def actor_totals(state: ProcsState, details: Mapping[int, RankDetails]) -> list[dict[str, Any]]:
    """Add up, for each actor mesh on these processes: name, cls, size, calls, failed, queue, ended.

    Those that the controller has spawned come first, also where no rank has answered; then those
    that live there and were spawned by others.
    """
    found: dict[int, dict[str, Any]] = {
        each.number: _total(each.name, each.cls.__qualname__, len(each.processes), each.ended)
        for each in list(state.actors)
        if not each.internal and not each.cls.__module__.startswith(_OUR_CLASSES)
    }
    known = found.keys() | {each.number for each in list(state.actors)}
    for process, told in details.items():
        for actor in told.actors if process in state.processes else ():
            total = found.get(actor.port)
            if total is None:
                if actor.port in known or actor.cls.startswith(_OUR_CLASSES):
                    continue
                total = found[actor.port] = _total(actor.name, actor.cls, 0, None)
            if actor.port not in known:
                total["size"] += 1
            total["calls"] += actor.calls
            total["failed"] += actor.failed
            total["queue"] += actor.queue
    return list(found.values())


def _total(name: str, cls: str, size: int, ended: str | None) -> dict[str, Any]:
    total: dict[str, Any] = {"name": name, "cls": cls.rpartition(".")[2], "size": size}
    return {**total, "calls": 0, "failed": 0, "queue": 0, "ended": ended}
