"""What passes each point of a rank, and how it ends when one of three ranks is harmed there."""

from collections.abc import Callable

import pytest

from monarch_nb import ActorError, CallInterrupted, ProcMesh, RankExited
from monarch_nb.control import cells
from monarch_nb.control.client import client
from monarch_nb.testing import faults
from tests import inside, support
from tests.support import eventually
from tests.testing.actors import Planned, Trainer

HARMED = 1
OTHERS = (0, 2)
LIMIT_S = 20.0
ACTIONS = {
    "kill": faults.kill(),
    "stop": faults.stop(0.3),
    "slow": faults.slow(0.1),
    "raise_": faults.raise_(Planned("by a test")),
    "cut": faults.cut(0.3),
    "corrupt": faults.corrupt(),
}
ENDS = {"kill": f"exited ({HARMED},)", "raise_": "raised"}  # else as if nothing had been


def cases(points, nightly=()):
    """All that makes sense at these points."""
    found = [(at, action) for at in points for action in faults.actions_at(at)]
    marks = dict.fromkeys(nightly, pytest.mark.nightly)
    return [
        pytest.param(*each, id="-".join(each), marks=marks.get("-".join(each), ()))
        for each in found
    ]


def how(error: BaseException | None) -> str:
    """How a call has ended."""
    match error:
        case None:
            return "ok"
        case RankExited(ranks=ranks):
            return f"exited {ranks}"
        case CallInterrupted():
            return "interrupted"
        case ActorError() if isinstance(error.__cause__, Planned):
            return "raised"
    return f"{type(error).__name__}: {error}"


def ends_of(futures) -> list[str]:
    return [how(future.exception(timeout=LIMIT_S)) for future in futures]


def calls(trainers: Trainer, name: str, *args) -> list[str]:
    """How this call to each of the ranks has ended."""
    ranks = [trainers.slice(gpus=rank) for rank in range(3)]
    return ends_of([getattr(each, name).call_one(*args) for each in ranks])


def cell(procs: ProcMesh, _: Trainer) -> list[str]:
    run = cells.run_cell(procs, "x = 1", filename="cell", first_line=1, tag=0)
    assert run.wait(LIMIT_S)
    words = {"lost": ENDS["kill"], "error": ENDS["raise_"]}
    outcomes = [run.outcomes[rank].status for rank in range(3)]
    return [words.get(each, each) for each in outcomes]


def collective(_: ProcMesh, trainers: Trainer) -> list[str]:
    # who waits for a rank that will not come is told so, which is a good end for it
    told = f"rank {HARMED} has died", f"rank {HARMED} failed"
    found = calls(trainers, "reduce")
    for rank in OTHERS:
        if any(words in found[rank] for words in told):
            found[rank] = "ok"
    return found


def transfer(_: ProcMesh, trainers: Trainer) -> list[str]:
    return calls(trainers, "pull", trainers.slice(gpus=0).offer.call_one().get(timeout=LIMIT_S))


def interrupt(procs: ProcMesh, trainers: Trainer) -> list[str]:
    sleeping = [trainers.slice(gpus=rank).sleep.call_one(60.0) for rank in range(3)]
    eventually(lambda: states(procs) == ["busy"] * 3, LIMIT_S)
    client().interrupt()
    return ["ok" if end == "interrupted" else end for end in ends_of(sleeping)]


def states(procs: ProcMesh) -> list[str]:
    [found] = [each for each in client().snapshot().meshes if each.name == procs.name]
    return [each.state for each in found.ranks]


DEEDS: dict[str, Callable[[ProcMesh, Trainer], list[str]]] = {
    "call": lambda _, trainers: calls(trainers, "echo", 1),
    "cell": cell,
    "collective": collective,
    "transfer": transfer,
    "interrupt": interrupt,
    "step": lambda _, trainers: calls(trainers, "train", 1),
}


def harm(spawn: Callable[..., ProcMesh], at: str, action: str) -> None:
    """Do what passes the point on three ranks, and harm one of them there."""
    before = support.Snapshot.take(unmarked=True)
    procs = spawn(per_host={"gpus": 3})
    trainers = procs.spawn("trainers", Trainer)
    assert calls(trainers, "echo", 0) == ["ok"] * 3
    fault = faults.inject(procs.slice(gpus=HARMED), at=at, action=ACTIONS[action])
    ends = DEEDS[at.partition(".")[0]](procs, trainers)
    assert [ends[rank] for rank in OTHERS] == ["ok", "ok"]
    assert ends[HARMED] == ENDS.get(action, "ok")
    if action == "kill":
        eventually(lambda: inside.lost(procs) == [HARMED])
    else:
        assert fault.remove() == 1
    others = [trainers.slice(gpus=rank).echo.call_one(2) for rank in OTHERS]
    assert [each.get(timeout=LIMIT_S) for each in others] == [2, 2]
    procs.stop().get(timeout=LIMIT_S)
    before.with_what_a_client_keeps().assert_clean()
