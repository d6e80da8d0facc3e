"""What a seed says of a run: how large it is, what is kept, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

HARMS = {
    "break a connection": 4,
    "freeze a connection": 3,
    "give up a direct link": 2,
    "cut a host off": 3,
    "cut a host off one way": 2,
    "freeze a host": 2,
    "kill a host": 2,
    "kill a carrier": 2,
    "kill an agent": 1,
    "kill a zygote": 2,
    "kill a rank": 5,
    "freeze a rank": 4,
}
"""And how often each, beside the others."""
FREEZE_KERNEL = "freeze the kernel"
CRASH = "crash the kernel"
CLOSE = "close the kernel"
ADOPT = "two kernels take over"
FENCE = "a kernel fences the one that drives"


class Fault(NamedTuple):
    """What goes wrong, and when. `seed`: for what else is to be chosen then."""

    at_s: float
    what: str
    seed: int

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s  {self.what}"


class Plan(NamedTuple):
    """Of a run: so many hosts of a job, with so many ranks each, and one mesh on the kernel's own.

    `keeps_s`: for how long meshes on the job's hosts are kept; `keeps_here_s`: that on the kernel's
    own; 0: they are not. `presses`: limits are small, signs of life late, forks slow. `dawdles`:
    what processes of one host say to each other may be late.
    """

    seed: int
    hosts: int
    ranks: int
    fan_out: int
    hosts_dial: bool
    keeps_s: float
    keeps_here_s: float
    presses: bool
    dawdles: bool
    busy_s: float
    ends_by: str
    faults: Sequence[Fault]

    def without(self, faults: Sequence[Fault]) -> Plan:
        """Return it with fewer faults."""
        return self._replace(faults=[each for each in self.faults if each not in faults])


LARGE = 10
FULL = 400
"""The last of so many seeds has more hosts, or 64 of them with 512 ranks."""


def plan_of(seed: int) -> Plan:
    chance = random.Random(seed)
    hosts, ranks, busy_s = chance.randint(2, 6), chance.randint(1, 3), chance.uniform(8.0, 16.0)
    fan_out = chance.choice([1, 2, 4, 32])
    if seed % FULL == FULL - 1:
        hosts, ranks, fan_out, busy_s = 64, 8, chance.randint(4, 32), 6.0
    elif seed % LARGE == LARGE - 1:
        hosts, ranks = chance.randint(8, 16), chance.randint(2, 4)
    hosts_dial = chance.random() < 0.75
    keeps = hosts_dial and chance.random() < 0.6
    keeps_here = chance.random() < 0.4
    harms = _harms(chance, busy_s)
    if keeps or keeps_here:
        harms += _changes_of_kernels(chance, busy_s)
    elif chance.random() < 0.3:
        harms.append(Fault(chance.uniform(1, busy_s), FREEZE_KERNEL, chance.getrandbits(32)))
    return Plan(
        seed=seed,
        hosts=hosts,
        ranks=ranks,
        fan_out=fan_out,
        hosts_dial=hosts_dial,
        keeps_s=chance.choice([4.0, 12.0]) if keeps else 0.0,
        keeps_here_s=chance.choice([4.0, 12.0]) if keeps_here else 0.0,
        presses=chance.random() < 0.25,
        dawdles=seed % 2 == 1,
        busy_s=busy_s,
        ends_by=chance.choice([CRASH, CLOSE]),
        faults=sorted(harm for harm in harms if harm.at_s < busy_s),
    )


def _harms(chance: random.Random, busy_s: float) -> list[Fault]:
    kinds = chance.choices([*HARMS], [*HARMS.values()], k=chance.randint(0, 12))
    return [Fault(chance.uniform(1, busy_s), each, chance.getrandbits(32)) for each in kinds]


def _changes_of_kernels(chance: random.Random, busy_s: float) -> list[Fault]:
    found = []
    at = chance.uniform(2.0, busy_s / 2)
    while at < busy_s and chance.random() < 0.8:
        if chance.random() < 0.6:
            found.append(Fault(at, chance.choice([CRASH, CLOSE]), chance.getrandbits(32)))
            if chance.random() < 0.85:
                at += chance.choice([0.05, 0.5, 2.0, 6.0])
                found.append(Fault(at, ADOPT, chance.getrandbits(32)))
        else:
            found.append(Fault(at, FENCE, chance.getrandbits(32)))
        at += chance.uniform(1.0, 6.0)
    return found
