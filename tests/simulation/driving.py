"""Who drives what: of kernels, agents and ranks that live, who takes whom for which controller.

A kernel and the agent of a host that it has lost notice that one after the other. Until both have,
the agent may be driven by a kernel that tells its ranks nothing, or has ended; then it is alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.agents import Agent
from tests.simulation.kernels import Kernel, Record
from tests.simulation.world import World


def agents(world: World) -> list[Agent]:
    """Return the agents that live."""
    found = [world.agent_here, *(member.agent for member in world.living)]
    return [each for each in found if not each.is_over]


def rivals(world: World) -> Iterator[str]:
    """Say which kernels drive the same meshes: never two do."""
    for record in world.records:
        if len(living := _drivers(record, world)) > 1:
            names = ", ".join(f"{each.process:x}" for each in living)
            yield f"kernels {names} drive the same meshes"


def disloyal(world: World) -> Iterator[str]:
    """Say which ranks have another controller than their agent, which has one."""
    for agent, rank in world.ranks():
        kernel = None if agent.keeping.is_alone else _kernel_of(agent, world)
        if kernel is not None and rank.proc.controller != kernel.process:
            what = f"rank {rank.process:x} is driven by {rank.proc.controller:x}"
            yield f"{what}, and its agent by {kernel.process:x}"


def unnoticed(world: World) -> list[str]:
    """Say which agents and kernels disagree on who drives whom: in the end none do."""
    return [*_not_lost_by_both(world), *_driven_by_another(world)]


def _not_lost_by_both(world: World) -> Iterator[str]:
    for agent in agents(world):
        has_kernel = _kernel_of(agent, world) is not None
        names = f"agent {agent.process:x}", f"{agent.states.controller:x}"
        if has_kernel and agent.keeping.is_alone:
            yield "{} goes on alone, and is not lost to {}".format(*names)
        elif not has_kernel and not agent.keeping.is_alone:
            yield "{} is driven by what has lost it, {}".format(*names)


def _driven_by_another(world: World) -> Iterator[str]:
    for record in world.records:
        for kernel in _drivers(record, world):
            for agent in _agents_of(record, world):
                driver = agent.states.controller
                if agent.process not in kernel.proc.dead and driver != kernel.process:
                    what = f"agent {agent.process:x} is driven by {driver:x}"
                    yield f"{what}, not by {kernel.process:x}"


def _agents_of(record: Record, world: World) -> list[Agent]:
    return [each for each in agents(world) if (each is world.agent_here) is record.is_here]


def _drivers(record: Record, world: World) -> list[Kernel]:
    return [each for each in world.kernels if record in each.records and not each.is_over]


def _kernel_of(agent: Agent, world: World) -> Kernel | None:
    # the one that it has let in last; None: that has ended, or has lost it
    for kernel in world.kernels:
        if kernel.process == agent.states.controller:
            has_it = not kernel.is_over and agent.process not in kernel.proc.dead
            return kernel if has_it else None
    return None
