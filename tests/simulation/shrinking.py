"""What of a failing run's faults is not needed for it to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.plan import Fault, Plan


def shrunk(plan: Plan, fails: Callable[[Plan], object]) -> Plan:
    """Leave out faults, first many together and then each, as long as the run still fails."""
    size = len(plan.faults)
    while size:
        plan = _without_some(plan, fails, size)
        size //= 2
    return plan


def _without_some(plan: Plan, fails: Callable[[Plan], object], size: int) -> Plan:
    at = 0
    while at < len(plan.faults):
        fewer = plan.without(_part(plan.faults, at, size))
        if fails(fewer):
            plan = fewer
        else:
            at += size
    return plan


def _part(faults: Sequence[Fault], at: int, size: int) -> Sequence[Fault]:
    return faults[at : at + size]
