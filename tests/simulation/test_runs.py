"""The whole control plane in virtual time: whatever goes wrong, calls end once, nothing is done
twice, nobody is forgotten and nothing stays behind. `python -m tests.simulation` runs more."""

from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from monarch_nb.host.agent.keeping import Keeping, Then
from monarch_nb.process.process import Proc
from tests.simulation import driving
from tests.simulation.kernels import Record
from tests.simulation.plan import FULL, HARMS, LARGE, plan_of
from tests.simulation.runs import Ran, described, run
from tests.simulation.shrinking import shrunk
from tests.simulation.world import World

SEEDS = range(200)
TOGETHER = 25
KEPT = Path(__file__).with_name("seeds.txt")


@cache
def ran(seed: int) -> Ran:
    return run(plan_of(seed))


def check(seeds) -> None:
    failed = [seed for seed in seeds if ran(seed).wrong]
    assert not failed, "\n".join([f"seeds {failed} fail.", described(plan_of(failed[0]))])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(SEEDS), TOGETHER))
def test_all_promises_are_kept_whatever_goes_wrong(first):
    check(SEEDS[first : first + TOGETHER])


@pytest.mark.slow
@pytest.mark.parametrize("time", [1, 2, 3])
def test_so_it_is_with_64_hosts_and_512_ranks(time):
    seed = time * FULL - 1
    assert plan_of(seed).hosts * plan_of(seed).ranks == 512
    check([seed])


@pytest.mark.slow
def test_what_has_failed_once_does_not_fail_again():
    lines = [line.partition("#")[0].strip() for line in KEPT.read_text().splitlines()]
    check([int(line) for line in lines if line])


@pytest.mark.slow
def test_all_that_may_go_wrong_does():
    seen = sum((ran(seed).seen for seed in SEEDS), Counter())
    wanted = {*HARMS, "records sent again", "records that came twice", "kernels that took over"}
    assert wanted <= seen.keys()
    assert seen["kernels that took over"] < seen["kernels that want to take over"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, method, done, said",
    [
        (Keeping, "controller_lost", Then.NOTHING, "is driven by what has lost it"),
        (Proc, "follow", None, "is driven by 1000000000200, and its agent by"),
    ],
    ids=["agents that miss the end of their kernel", "ranks that do not follow the next one"],
)
def test_what_does_not_learn_who_drives_it_is_found(kind, method, done, said, monkeypatch):
    monkeypatch.setattr(kind, method, lambda *_, **__: done)
    runs = map(run, map(plan_of, SEEDS))
    assert any(said in each for found in runs for each in found.wrong)


def test_one_seed_is_one_run():
    seed = LARGE - 1
    assert run(plan_of(seed)) == ran(seed)


def test_what_says_nothing_for_long_is_not_lost_if_all_is_well(monkeypatch):
    world = World(plan_of(0)._replace(presses=False), monkeypatch)
    kernel = world.kernels[0]
    noticed = []
    kernel.supervision.on_pulse.append(lambda: noticed.append(dict(kernel.supervision.silent)))
    world.clock.run(5 * world.config.outage_s)
    world.close()
    assert kernel.proc.dead == {}
    assert noticed == []


def test_faults_that_a_failure_does_not_need_are_left_out():
    plan = next(plan for seed in range(50) if len((plan := plan_of(seed)).faults) > 8)
    needed = {plan.faults[2], plan.faults[7]}
    assert set(shrunk(plan, lambda fewer: needed <= set(fewer.faults)).faults) == needed


def keep_a_mesh(world) -> Record:
    kernel = world.kernels[0]
    agents = [member.agent.process for member in world.members.values()]
    record = Record(False, "key", world.plan.keeps_s, kernel, [*world.members])
    kernel.keep([kernel.spawn(agents, 1)], record)
    world.records.append(record)
    return record


@pytest.mark.slow
def test_ranks_need_not_follow_a_kernel_that_ended_when_it_was_let_in(monkeypatch):
    sizes = {"hosts": 2, "hosts_dial": True, "keeps_s": 12.0, "keeps_here_s": 0.0}
    plan = plan_of(0)._replace(presses=False, **sizes)
    with closing(World(plan, monkeypatch)) as world:
        record = keep_a_mesh(world)
        first, second = world.kernels[0], world.new_kernel()
        world.clock.run(1.0)
        first.die()
        second.take_over(record, "key", fence=False)
        agents = [member.agent for member in world.members.values()]
        is_in = lambda: any(agent.states.controller == second.process for agent in agents)
        assert world.clock.run_until(is_in, 10.0, 0.001)
        second.die()
        assert driving.unnoticed(world)
        assert [*driving.disloyal(world)] == []
        world.clock.run(2 * world.config.outage_s)
        assert driving.unnoticed(world) == []
        assert all(agent.keeping.is_alone for agent in agents)
        assert {rank.proc.controller for _, rank in world.ranks()} == {first.process}
