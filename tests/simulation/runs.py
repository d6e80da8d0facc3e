"""One seed, one run: a workload on the meshes of a world in which things go wrong, and at the end
the check that all promises were kept."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from typing import NamedTuple

import pytest

from monarch_nb.meshes.states import ProcsState
from monarch_nb.net import wire
from tests.simulation import driving
from tests.simulation.kernels import Kernel, Record
from tests.simulation.plan import CRASH, Plan
from tests.simulation.ranks import ASK, SPAWN, STEP, Order, Rank
from tests.simulation.shrinking import shrunk
from tests.simulation.world import World

SETTLES_S = 90.0
"""After the last that goes wrong all is known by then: outages follow each other in the tree."""


class Ran(NamedTuple):
    """What came of a run: what was violated, the first first; what went wrong, with times; how
    often what happened."""

    wrong: list[str]
    story: list[str]
    seen: Counter[str]


def run(plan: Plan) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        world = World(plan, patch)
        try:
            _Run(world).play()
        except Exception:  # whatever it is, it is to be told with the seed
            world.ledger.is_wrong(traceback.format_exc())
        finally:
            world.close()
    ledger = world.ledger
    return Ran(ledger.wrong, ledger.story, ledger.seen)


def described(plan: Plan) -> str:
    """Say what is violated in a run, and with which faults: as few as there have to be."""
    plan = shrunk(plan, lambda fewer: run(fewer).wrong)
    ran = run(plan)
    lines = [
        f"seed {plan.seed}: {ran.wrong[0] if ran.wrong else 'it fails not every time'}",
        str(plan._replace(faults=())),
        *ran.story,
        f"To run it again: python -m tests.simulation --seed {plan.seed}",
    ]
    return "\n".join(lines)


class _Run:
    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.ledger = world.ledger
        self.random = random.Random(f"work {world.plan.seed}")

    def play(self) -> None:
        self._begin()
        for fault in self.plan.faults:
            self.world.clock.after(fault.at_s, lambda fault=fault: self.world.harm(fault))
        until = self.world.clock.now + self.plan.busy_s
        while self.world.clock.now < until and not self.ledger.wrong:
            self._work()
            self.world.clock.run(self.random.choice([0.003, 0.03, 0.1, 0.5]))
        for step in (self._settle, self._probe, self._notice, self._end):
            if not self.ledger.wrong:
                step()

    def _begin(self) -> None:
        world, kernel = self.world, self.world.kernels[0]
        agents = [wire.agent_id(host) for host in world.members]
        meshes = [kernel.spawn(agents, self.plan.ranks)]
        if len(agents) > 2 and self.random.random() < 0.5:
            meshes.append(kernel.spawn(agents[:2], 1))
        if self.plan.keeps_s:
            record = Record(False, "key", self.plan.keeps_s, kernel, list(world.members))
            kernel.keep(meshes, record)
            world.records.append(record)
        if self.plan.keeps_here_s:
            mesh = kernel.spawn([world.local_agent], self.plan.ranks)
            record = Record(True, "key here", self.plan.keeps_here_s, kernel, [])
            kernel.keep([mesh], record)
            world.records.append(record)
        elif self.random.random() < 0.3:
            kernel.spawn([world.local_agent], self.plan.ranks)

    # the workload

    def _work(self) -> None:
        for kernel in self.world.driving:
            meshes = [each for each in kernel.meshes.values() if each.ended is None]
            for _ in range(self.random.randint(0, 3) if meshes else 0):
                self._act(kernel, self.random.choice(meshes))

    def _act(self, kernel: Kernel, mesh: ProcsState) -> None:
        what, ranks = self.random.random(), range(len(mesh.processes))
        if what < 0.35:
            self._call(kernel, mesh, list(ranks))
        elif what < 0.6:
            some = sorted(self.random.sample(ranks, self.random.randint(1, len(ranks))))
            self._call(kernel, mesh, some)
        elif what < 0.85:
            self._call(kernel, mesh, [self.random.choice(ranks)])
        elif what < 0.93:
            self._call_about(kernel, mesh, ASK, self.random.choice(mesh.processes))
        elif what < 0.95:
            rank = self.random.choice(ranks)
            child = self.world.new_process(mesh.processes[rank] >> 48)
            self._call_about(kernel, mesh, SPAWN, child, rank)
        elif what < 0.96:
            kernel.kill(mesh, self.random.choice(ranks))
        elif what < 0.97:
            kernel.heal(mesh)
        elif what < 0.975 and len(kernel.meshes) > 1:
            kernel.stop(mesh)

    def _call(self, kernel: Kernel, mesh: ProcsState, ranks: list[int]) -> None:
        if not mesh.only_seen:
            kernel.call(mesh, ranks, Order(STEP, self.world.new_number()))

    def _call_about(
        self, kernel: Kernel, mesh: ProcsState, what: int, about: int, rank: int | None = None
    ) -> None:
        # never two that wait for each other
        others = [each for each, process in enumerate(mesh.processes) if process < about]
        chosen = self.random.choice(others) if rank is None and others else rank
        if chosen is not None and not mesh.only_seen:
            kernel.call(mesh, [chosen], Order(what, self.world.new_number(), about))

    # what must hold in the end

    def _settle(self) -> None:
        clock = self.world.clock
        clock.run(1.0)
        clock.run_until(lambda: self._is_settled() or self.ledger.wrong, SETTLES_S, 0.5)
        for number, made in self.ledger.open.items():
            targets = ", ".join(f"{each:x}" for each in made.targets[:4])
            self.ledger.is_wrong(f"call {number} of {made.caller:x} to {targets} does not end")
        if not self.ledger.wrong:
            self._check_meshes()

    def _is_settled(self) -> bool:
        is_waiting = any(each.is_taking_over and not each.is_over for each in self.world.kernels)
        known = map(self._is_known, self.world.driving)
        return not (self.ledger.open or is_waiting or self._orphans()) and all(known)

    def _orphans(self) -> list[Rank]:
        # which ranks have spawned that have died
        living = {rank.process for _, rank in self.world.ranks()}
        owners = living | {kernel.process for kernel in self.world.kernels}
        return [rank for _, rank in self.world.ranks() if rank.owner not in owners]

    def _is_known(self, kernel: Kernel) -> bool:
        return all(not self._unknown(kernel, mesh) for mesh in kernel.meshes.values())

    def _unknown(self, kernel: Kernel, mesh: ProcsState) -> list[int]:
        # ranks that live and are thought to be dead, or the other way round
        if mesh.only_seen or mesh.ended is not None:
            return []
        living = {rank.process for _, rank in self.world.ranks()}
        return [
            rank
            for rank, process in enumerate(mesh.processes)
            if (process in living) is (process in kernel.proc.dead)
        ]

    def _check_meshes(self) -> None:
        for kernel in self.world.driving:
            for mesh in kernel.meshes.values():
                for rank in self._unknown(kernel, mesh):
                    process = mesh.processes[rank]
                    is_dead = process in kernel.proc.dead
                    what = "lives, and is lost to" if is_dead else "is dead, and not lost to"
                    self.ledger.is_wrong(f"rank {process:x} {what} kernel {kernel.process:x}")
        for rank in self._orphans():
            self.ledger.is_wrong(f"rank {rank.process:x} goes on without its owner")
        for agent in driving.agents(self.world):
            agent.watches.check()
        for each in (*driving.rivals(self.world), *driving.disloyal(self.world)):
            self.ledger.is_wrong(each)

    def _probe(self) -> None:
        # all that lives can be used
        for kernel in self.world.driving:
            for mesh in kernel.meshes.values():
                ranks = [
                    rank for rank, each in enumerate(mesh.processes) if each not in kernel.proc.dead
                ]
                if ranks and mesh.ended is None and not mesh.only_seen:
                    self._call(kernel, mesh, ranks)
        self.world.clock.run_until(lambda: not self.ledger.open or self.ledger.wrong, 60.0, 0.2)
        for number, made in self.ledger.open.items():
            self.ledger.is_wrong(f"call {number} of {made.caller:x} does not end when all is well")

    def _notice(self) -> None:
        # who has lost whom is known to both, and what a kernel still has follows it
        world = self.world
        world.clock.run_until(lambda: not driving.unnoticed(world), SETTLES_S, 0.5)
        for each in (*driving.unnoticed(world), *driving.disloyal(world)):
            self.ledger.is_wrong(each)

    def _end(self) -> None:
        world = self.world
        for kernel in [each for each in world.kernels if not each.is_over]:
            if self.plan.ends_by == CRASH:
                kernel.die()
            else:
                kernel.close()
        # in a chain of hosts one notices after the other
        outages = 4 + (self.plan.hosts if self.plan.fan_out == 1 else 0)
        keeps_s = max(self.plan.keeps_s, self.plan.keeps_here_s)
        limit_s = keeps_s + outages * world.config.outage_s
        world.clock.run_until(lambda: not self._left(), limit_s, 0.5)
        for each in self._left():
            self.ledger.is_wrong(f"{each} goes on when its kernel has gone and its time is over")

    def _left(self) -> list[str]:
        agents = [f"agent {each.process:x}" for each in driving.agents(self.world)]
        ranks = [f"rank {rank.process:x}" for _, rank in self.world.ranks()]
        return [*(f"host {member.host}" for member in self.world.living), *agents, *ranks]
