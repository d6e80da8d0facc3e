"""All hosts, kernels and the network between them, in virtual time; and what goes wrong there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from monarch_nb.config import Config
from monarch_nb.core.wire.frames import HOST_SHIFT, SERVICE_BIT
from monarch_nb.net.hosts.handshake import Secret
from tests.simulation import plan as plans
from tests.simulation import sockets
from tests.simulation.agents import GUESSED, Agent
from tests.simulation.clock import Clock
from tests.simulation.kernels import HERE, Kernel, Record
from tests.simulation.ledger import Ledger
from tests.simulation.members import Member
from tests.simulation.plan import Fault, Plan
from tests.simulation.ranks import Rank
from tests.simulation.site import Links, Site
from tests.simulation.sockets import SimulatedHost, SimulatedLink

_OUTAGE_S = 5.0
_PERIODS_S = (0.3, 0.9, 1.4, 2.0, 4.4, 5.2, 9.0)
"""Of what stands still: around the times after which it is silent, and given up."""


class World:
    """Use it within the `patch`, which has to be undone afterwards."""

    def __init__(self, plan: Plan, patch: pytest.MonkeyPatch) -> None:
        self.plan = plan
        self.config = Config(
            detect_s=2.0, grace_s=3.0, outage_s=_OUTAGE_S, exit_s=1.0, fan_out=plan.fan_out
        )
        self.clock = Clock(plan.seed)
        longest_s = 2 * max(_PERIODS_S)  # it stands still, then it is cut off
        self.ledger = Ledger(self.clock, longest_s + _OUTAGE_S + 2.0)
        self.job = "job"
        self.has_slow_forks = plan.presses
        self.listening: Kernel | None = None
        self.kernels: list[Kernel] = []
        self.members: dict[int, Member] = {}
        self.records: list[Record] = []
        self.here = Site(self.clock, HERE, dawdles=plan.dawdles)
        self._ids = itertools.count(1)
        self._pids = itertools.count(1000)
        self._numbers = itertools.count(1)
        self._drivers: set[int] = set()
        self._cut_until: dict[tuple[int, int], float] = {}
        sockets.use(self, self.ledger.seen, patch)
        patch.setattr("monarch_nb.process.process.Links", Links)
        if plan.presses:
            patch.setattr("monarch_nb.net.hosts.session.WINDOW_BYTES", 256)
            patch.setattr("monarch_nb.net.hosts.link.ACK_RECORDS", 3)
            patch.setattr("monarch_nb.net.hosts.link._TUNNEL_ACK_RECORDS", 5)
        self.local_agent = self._new_agent_id()
        first = self.new_kernel()
        self.drives(first.process)
        self.listening = first
        self.agent_here = self._start_agent_here(first)
        for number in range(2, 2 + plan.hosts):
            self._join(number, first)

    def _new_agent_id(self) -> int:
        return self.new_process(HERE) | SERVICE_BIT

    def new_kernel(self) -> Kernel:
        kernel = Kernel(self, self.new_process(HERE))
        kernel.start()
        self.kernels.append(kernel)
        return kernel

    def _start_agent_here(self, owner: Kernel) -> Agent:
        agent = Agent(self, self.here, self.local_agent, owner.process, self._agent_here_ended)
        agent.owner_pid = owner.pid
        return agent

    def _agent_here_ended(self, _code: int | None) -> None:
        for kernel in self.kernels:
            if not kernel.is_over and kernel.process == self.agent_here.states.controller:
                self.local_agent = self._new_agent_id()
                self.agent_here = self._start_agent_here(kernel)
                kernel.loop.after(self.some_s(0.01), kernel.local_agent_ended)

    def _join(self, number: int, kernel: Kernel) -> None:
        member = self.members[number] = Member(self, number)
        secret = Secret.new()
        member.join(kernel.process, secret, [kernel.address] if self.plan.hosts_dial else [])
        kernel.link(number, secret, [] if self.plan.hosts_dial else [str(number)])

    def close(self) -> None:
        for each in (*self.members.values(), *(kernel.gateway for kernel in self.kernels)):
            each.close_quietly()

    # chance, and what is new

    def chance(self, probability: float) -> bool:
        return self.clock.random.random() < probability

    def some_s(self, most_s: float) -> float:
        """Choose a time."""
        return self.clock.random.random() * most_s

    def new_process(self, host: int) -> int:
        return host << HOST_SHIFT | next(self._ids) << 8

    def new_mesh_number(self) -> int:
        return 1 << 20 | next(self._ids)

    def new_number(self) -> int:
        return next(self._numbers)

    def new_pid(self) -> int:
        return next(self._pids)

    # kernels

    def drives(self, process: int) -> None:
        """Note that a kernel has been let in somewhere."""
        self._drivers.add(process)

    def drove(self, process: int) -> bool:
        return process in self._drivers

    def listen(self, kernel: Kernel) -> bool:
        """Have it be found by hosts that look for a kernel; tell whether the address was free."""
        if self.listening is None:
            self.listening = kernel
        return self.listening is kernel

    def free(self, kernel: Kernel) -> None:
        if self.listening is kernel:
            self.listening = None

    def kernel_ended(self, kernel: Kernel) -> None:
        self.free(kernel)
        self.here.end(kernel.process)
        agent = self.agent_here
        if agent.owner_pid == kernel.pid and not agent.is_over:
            agent.loop.after(self.some_s(0.05), agent.owner_ended)

    def forgive(self, host: int) -> None:
        """End calls between ranks of this host, whose controller has gone, and of hosts that it
        has no link to: what that carried is lost with it."""
        for _, rank in self.ranks():
            for process in rank.asked():
                hosts = {host, rank.process >> HOST_SHIFT, process >> HOST_SHIFT}
                if len(hosts) == 2 and not self._are_linked(*hosts):
                    rank.give_up(process)

    def _are_linked(self, one: int, other: int) -> bool:
        ends = self.members.get(one), self.members.get(other)
        found = [{link.host for link in end.links} for end in ends if end is not None]
        return len(found) == 2 and other in found[0] and one in found[1]

    @property
    def driving(self) -> list[Kernel]:
        """The kernels that live and have meshes that they may use."""
        return [
            kernel
            for kernel in self.kernels
            if not kernel.is_over and any(not each.only_seen for each in kernel.meshes.values())
        ]

    @property
    def coming(self) -> list[Kernel]:
        """The kernels that are about to take over, and have nothing yet."""
        return [
            kernel
            for kernel in self.kernels
            if kernel.is_taking_over and not kernel.is_over and not kernel.meshes
        ]

    # the network

    def at(self, address: str) -> SimulatedHost | None:
        if not address.startswith(f"{HERE}:"):
            return self.members[int(address)]
        kernel = self.listening  # who listens at the address of the first is found there
        return None if kernel is None else kernel.gateway

    def delay_s(self, here: int, there: int) -> float:
        delay_s = self.some_s(sockets.MOST_DELAY_S)
        if self.plan.presses and self.chance(0.01):
            delay_s += 0.9 * self.config.pulse_timeout_s
        return max(delay_s, self._cut_until.get((here, there), 0.0) - self.clock.now)

    def is_cut(self, here: int, there: int) -> bool:
        ways = (here, there), (there, here)
        return any(self._cut_until.get(way, 0.0) > self.clock.now for way in ways)

    # harm

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members.values() if not member.is_over]

    def ranks(self) -> Iterator[tuple[Agent, Rank]]:
        """All ranks that live, with their agents."""
        for agent in [self.agent_here, *(member.agent for member in self.living)]:
            for rank in list(agent.ranks.values()):
                if not rank.is_over:
                    yield agent, rank

    def harm(self, fault: Fault) -> None:
        """Do what goes wrong, if there is anything for it."""
        chance = random.Random(fault.seed)
        if fault.what in _AT_KERNELS:
            done = _AT_KERNELS[fault.what](self, chance)
        elif fault.what in _AT_RANKS:
            found = list(self.ranks())
            done = _AT_RANKS[fault.what](*chance.choice(found), chance) if found else None
        else:
            done = self._harm_host(fault.what, chance)
        if done is not None:
            self.ledger.seen[fault.what] += 1
            self.ledger.tell(f"{fault.what}: {done}")

    def _harm_host(self, what: str, chance: random.Random) -> str | None:
        living = self.living
        if what == "kill a carrier":
            through = {each.through for kernel in self.driving for each in kernel.gateway.links}
            living = [member for member in living if member.host in through]
        if not living or (what.startswith("kill a ") and len(self.living) < 2):
            return None
        member = chance.choice(living)
        return _AT_HOSTS[what](self, member, chance)

    def cut_off(self, member: Member, chance: random.Random, ways: int = 3) -> str:
        """Let nothing get from a host to others, or back, for a while."""
        seconds = chance.choice(_PERIODS_S)
        until = self.clock.now + seconds
        for other in (HERE, *self.members):
            if ways & 1:
                self._cut_until[member.host, other] = until
            if ways & 2:
                self._cut_until[other, member.host] = until
        return f"host {member.host} for {seconds:g} s"


def _connection(member: Member, chance: random.Random) -> sockets.Socket | None:
    links = [each for each in member.links if isinstance(each, SimulatedLink)]
    found = [each.connected_by for each in links if each.connected_by]
    return chance.choice(found) if found else None


def _break(_: World, member: Member, chance: random.Random) -> str | None:
    if (mine := _connection(member, chance)) is None or mine.other is None:
        return None
    mine.break_off()
    mine.other.break_off()
    return f"of host {member.host}"


def _freeze(_: World, member: Member, chance: random.Random) -> str | None:
    if (mine := _connection(member, chance)) is None or mine.other is None:
        return None
    seconds = chance.choice(_PERIODS_S)
    mine.freeze(seconds)
    if chance.random() < 0.6:
        mine.other.freeze(seconds)
    return f"of host {member.host} for {seconds:g} s"


def _give_up_direct(_: World, member: Member, chance: random.Random) -> str | None:
    direct = [each for each in member.links if each.host != HERE]
    if not direct:
        return None
    link = chance.choice(direct)
    link.lose("the test has it so")
    return f"of host {member.host} to {link.host}"


def _cut_one_way(world: World, member: Member, chance: random.Random) -> str:
    return world.cut_off(member, chance, chance.choice([1, 2]))


def _freeze_host(_: World, member: Member, chance: random.Random) -> str:
    seconds = chance.choice(_PERIODS_S)
    member.freeze(seconds)
    return f"host {member.host} for {seconds:g} s"


def _kill_host(_: World, member: Member, _chance: random.Random) -> str:
    member.die()
    return f"host {member.host}"


def _kill_agent(_: World, member: Member, _chance: random.Random) -> str | None:
    return None if member.agent.is_over else _killed(member.agent, member.host)


def _killed(agent: Agent, host: int) -> str:
    agent.crash()
    return f"of host {host}"


def _kill_zygote(_: World, member: Member, _chance: random.Random) -> str | None:
    if member.agent.is_over:
        return None
    member.agent.kill_zygote()
    return f"of host {member.host}"


_AT_HOSTS: dict[str, Callable[[World, Member, random.Random], str | None]] = {
    "break a connection": _break,
    "freeze a connection": _freeze,
    "give up a direct link": _give_up_direct,
    "cut a host off": World.cut_off,
    "cut a host off one way": _cut_one_way,
    "freeze a host": _freeze_host,
    "kill a host": _kill_host,
    "kill a carrier": _kill_host,
    "kill an agent": _kill_agent,
    "kill a zygote": _kill_zygote,
}


def _kill_rank(_: Agent, rank: Rank, _chance: random.Random) -> str:
    rank.exit(signal=9)
    return f"{rank.process:x}"


def _freeze_rank(agent: Agent, rank: Rank, chance: random.Random) -> str:
    seconds = chance.choice(_PERIODS_S)
    agent.freeze_rank(rank, seconds)
    return f"{rank.process:x} for {seconds:g} s"


_AT_RANKS: dict[str, Callable[[Agent, Rank, random.Random], str | None]] = {
    "kill a rank": _kill_rank,
    "freeze a rank": _freeze_rank,
}


def _freeze_kernel(world: World, chance: random.Random) -> str | None:
    if not world.driving:
        return None
    kernel, seconds = chance.choice(world.driving), chance.choice(_PERIODS_S)
    kernel.loop.freeze(seconds)
    return f"{kernel.process:x} for {seconds:g} s"


def _end_kernel(world: World, chance: random.Random, *, in_order: bool) -> str | None:
    living = world.driving or world.coming
    if not living:
        return None
    kernel = chance.choice(living)
    if in_order:
        kernel.close()
    else:
        kernel.die()
    return f"{kernel.process:x}"


def _take_over(world: World, chance: random.Random, *, fence: bool) -> str | None:
    if not world.records:
        return None
    record = chance.choice(world.records)
    if record.driver.is_over is fence:
        return None
    count = 1 if fence and chance.random() < 0.5 else 2
    new = [world.new_kernel() for _ in range(count)]
    for kernel in new:
        key = record.key if chance.random() < 0.8 else GUESSED
        kernel.loop.after(
            chance.choice([0.0, 0.01, 0.3]),
            lambda kernel=kernel, key=key: kernel.take_over(record, key, fence=fence),
        )
    _order_meanwhile(record, chance)
    where = "of the kernel's host" if record.is_here else "of the job"
    return (
        f"{', '.join(f'{each.process:x}' for each in new)} from {record.driver.process:x} {where}"
    )


def _order_meanwhile(record: Record, chance: random.Random) -> None:
    # whose place is taken does not know it yet
    driver, mesh = record.driver, chance.choice([*record.meshes.values(), None])
    if mesh is not None:
        rank = chance.randrange(len(mesh.processes))
        for _ in range(3):
            driver.loop.after(chance.random() * 0.02, lambda: driver.kill(mesh, rank))


_AT_KERNELS: dict[str, Callable[[World, random.Random], str | None]] = {
    plans.FREEZE_KERNEL: _freeze_kernel,
    plans.CRASH: lambda world, chance: _end_kernel(world, chance, in_order=False),
    plans.CLOSE: lambda world, chance: _end_kernel(world, chance, in_order=True),
    plans.ADOPT: lambda world, chance: _take_over(world, chance, fence=False),
    plans.FENCE: lambda world, chance: _take_over(world, chance, fence=True),
}
