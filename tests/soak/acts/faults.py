"""What ends, stops and hangs: ranks that are killed, stopped, interrupted, and come back.

Each act leaves `main` whole.
"""

import os
import signal
import textwrap
import time

from tests import support
from tests.soak.acts.data import GROUP
from tests.soak.stage import DEADLINE_S, RANKS, Stage, label, same

BUSY = "import time\nfor _ in range(600): time.sleep(0.1)"


def _bring_back(stage: Stage, ranks: list[int]) -> None:
    restart = f"%mesh restart {label(ranks).split()[1]} --name main"
    how = stage.dice.choice(["%mesh heal main", restart])
    stage.says(how, f"{label(ranks)} started again")
    stage.check_all_are_well()


def idle_ranks_are_killed(stage: Stage) -> None:
    ranks, pids = stage.some(), stage.pids()
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    stage.until_all_are_told_lost(ranks)
    _bring_back(stage, ranks)


def busy_ranks_are_killed(stage: Stage) -> None:
    ranks, token = stage.some(), stage.new("busy")
    pids = stage.pids()
    cell = stage.start(f"%%mesh @main\n{stage.mark(token)}\n{BUSY}")
    stage.until_begun(cell, token, RANKS)
    for rank in ranks:
        os.kill(pids[rank], signal.SIGKILL)
    for rank in ranks:
        support.eventually(lambda rank=rank: not support.is_running(pids[rank]), DEADLINE_S)
    stage.kernel.interrupt()
    stage.kernel.finish(cell, DEADLINE_S)
    assert cell.status == "error", cell.shown
    assert f"{label(ranks)}: the process was killed by signal 9" in cell.error, cell.error
    stage.ledger.has_once(token, RANKS)
    _bring_back(stage, ranks)


def a_busy_cell_is_stopped(stage: Stage) -> None:
    token = stage.new("stopped")
    cell = stage.start(f"%%mesh @main\n{stage.mark(token)}\n{BUSY}")
    stage.until_begun(cell, token, RANKS)
    stage.kernel.interrupt()
    stage.kernel.finish(cell, DEADLINE_S)
    assert "ranks 0-3 were interrupted" in cell.error, cell.error
    stage.ledger.has_once(token, RANKS)
    stage.check_all_are_well()


def a_call_is_stopped(stage: Stage) -> None:
    token, name = stage.new("waits"), stage.new("work")
    stage.ok(f"{name} = main.spawn({name!r}, Work, {stage.ledger.name!r})")
    cell = stage.start(f"{name}.waits.call({token!r}).get()")
    stage.until_begun(cell, token, RANKS)
    stage.kernel.interrupt()
    stage.kernel.finish(cell, DEADLINE_S)
    assert "KeyboardInterrupt" in cell.error, cell.error
    stage.ok("%mesh interrupt --name main")
    stage.ledger.has_once(token, RANKS)
    token = stage.new("after")
    same(stage.value(f"list({name}.add.call({token!r}, 1).get().values())"), [1] * 4)
    stage.ledger.has_once(token, RANKS)
    stage.ok(f"{name}.stop().get(60)\ndel {name}")


def a_cell_takes_too_long(stage: Stage) -> None:
    ranks = stage.some()
    stage.fails(
        f"%%mesh @main --timeout 0.5\nif rank in {ranks}:\n{textwrap.indent(BUSY, '    ')}",
        f"TimeoutError: {label(ranks)} had not ended after 0.5 s",
    )
    stage.check_all_are_well()


def ranks_are_stopped_and_go_on(stage: Stage) -> None:
    ranks, token = stage.some(), stage.new("frozen")
    for_s = stage.dice.choice([0.2, 1.0, 3.5])
    pids = stage.pids()
    for rank in ranks:
        support.stop(pids[rank])
    try:
        cell = stage.start(f"%%mesh @main\n{stage.mark(token)}\nrank")
        over = time.monotonic() + for_s
        stage.kernel.until(lambda: time.monotonic() > over, DEADLINE_S)
        assert cell.reply is None, f"ranks {ranks} are stopped: {cell.shown}"
    finally:
        for rank in ranks:
            os.kill(pids[rank], signal.SIGCONT)
    stage.kernel.finish(cell, DEADLINE_S)
    assert cell.status == "ok", cell.shown
    stage.ledger.has_once(token, RANKS)
    stage.check_all_are_well()


def a_rank_is_killed_by_hand(stage: Stage) -> None:
    ranks = stage.some()
    stage.ok(f"%mesh interrupt --kill {label(ranks).split()[1]} --name main")
    stage.fails("%%mesh @main\nrank", f"{label(ranks)} of main ", "lost", "%mesh heal")
    _bring_back(stage, ranks)


def all_are_restarted(stage: Stage) -> None:
    before = stage.pids()
    stage.says("%mesh restart --name main", "ranks 0-3 started again")
    stage.check_all_are_well()
    assert not set(before) & set(stage.pids())


def an_actor_comes_back_by_itself(stage: Stage) -> None:
    rank, name, token = stage.dice.choice(RANKS), stage.new("again"), stage.new("add")
    path = stage.ledger.name
    stage.ok(f"{name} = main.spawn({name!r}, Work, {path!r}, supervise=elastic.restart(max=2))")
    pids = stage.value(f"list({name}.pid.call().get().values())")
    os.kill(pids[rank], signal.SIGKILL)
    support.eventually(lambda: not support.is_running(pids[rank]), DEADLINE_S)
    stage.run(f"{name}.pid.call().get()")  # it may have been sent before
    after = stage.value(f"list({name}.pid.call().get().values())")
    same([a == b for a, b in zip(pids, after, strict=True)], [r != rank for r in RANKS])
    same(stage.value(f"list({name}.add.call({token!r}, 1).get().values())"), [1] * 4)
    stage.ledger.has_once(token, RANKS)
    stage.ok(f"{name}.stop().get(60)\ndel {name}")
    stage.ok("%mesh heal main")  # other actors that were on this rank, those of tensors for one
    stage.check_all_are_well()


def a_collective_hangs(stage: Stage) -> None:
    rank = stage.dice.choice(RANKS)
    stage.ok(f"%%mesh @main\nimport time, torch, torch.distributed as dist\n{GROUP}")
    cell = stage.start(
        f"%%mesh @main\nif rank != {rank}:\n    dist.all_reduce(torch.ones(1))\nelse:\n"
        "    for _ in range(600): time.sleep(0.1)"
    )
    others = [each for each in RANKS if each != rank]
    stage.kernel.until(lambda: f"{label(others)} in all_reduce" in cell.shown, DEADLINE_S)
    stage.kernel.interrupt()
    stage.kernel.finish(cell, DEADLINE_S)
    assert f"{label([rank])} was interrupted" in cell.error, cell.error
    _reduces(stage)
    stage.ok("%mesh restart --name main")  # what was broken is kept for the life of a rank


def a_member_of_a_group_is_killed(stage: Stage) -> None:
    rank = stage.dice.choice(RANKS)
    _reduces(stage)
    os.kill(stage.pids()[rank], signal.SIGKILL)
    stage.until_all_are_told_lost([rank])
    stage.ok("%mesh heal main")
    _reduces(stage)
    stage.ok("%mesh restart --name main")


def _reduces(stage: Stage) -> None:
    cell = stage.ok(
        f"%%mesh @main\nimport torch, torch.distributed as dist\n{GROUP}\n"
        "t = torch.ones(1) * rank\ndist.all_reduce(t)\nint(t)"
    )
    assert "[0-3] 6" in cell.shown, cell.shown


ACTS = {
    idle_ranks_are_killed: 4, busy_ranks_are_killed: 3, a_busy_cell_is_stopped: 4,
    a_call_is_stopped: 2, a_cell_takes_too_long: 2, ranks_are_stopped_and_go_on: 2,
    a_rank_is_killed_by_hand: 2, all_are_restarted: 2, an_actor_comes_back_by_itself: 2,
    a_collective_hangs: 1, a_member_of_a_group_is_killed: 1,
}  # fmt: skip
WANT_TORCH = {a_collective_hangs, a_member_of_a_group_is_killed}
