"""A kernel: the controller of meshes on its own host and on those of a job, or one that takes the
place of such a controller.

Its messaging, supervision, gateway, spawning, seats of lost ranks and places of hosts are the real
ones. What the client and the keeper do around them is simulated, in the order of
`control/client.py`, `control/keeping/adoption.py` and `keeper.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch_nb.control.hosts.places import Places
from monarch_nb.control.hosts.watchers import Watchers
from monarch_nb.core.wire.frames import HOST_SHIFT, Message
from monarch_nb.core.wire.messages import agents as messages
from monarch_nb.core.wire.messages import keeping
from monarch_nb.core.wire.messages.codec import Done, Refused
from monarch_nb.core.wire.messages.hosts import Offer
from monarch_nb.errors import SupervisionError
from monarch_nb.meshes.healing.seats import Seats
from monarch_nb.meshes.restarting.intensity import Intensity, Restart
from monarch_nb.meshes.spawning import Spawner
from monarch_nb.meshes.states import ProcsState, Seat
from monarch_nb.net import wire
from monarch_nb.net.hosts.gateway import GatewayRelay
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import Timing
from monarch_nb.process.exit import Exit
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.calls import Target
from monarch_nb.process.process import Proc, serve
from monarch_nb.process.supervision.supervision import MeshFailure, Supervision
from tests.simulation.clock import Loop
from tests.simulation.ranks import Order, call_all, call_one, mesh_of, shape_of
from tests.simulation.site import NOWHERE, Links, Place, Reached
from tests.simulation.sockets import SimulatedHost, SimulatedLink

if TYPE_CHECKING:
    from tests.simulation.world import World

HERE = 1
"""The host of all kernels."""
_COME_S = 5.0
_ANSWER_S = 5.0
_FREE_S = 5.0
_LOOK_S = 0.05
_TAKEN = "another kernel has taken it over"
_FEW_RESTARTS = Restart(max=2, within_s=10.0)


@dataclass
class Record:
    """What is written down of kept meshes: all that another kernel needs to take their place.
    `is_here`: they are of the kernels' own host."""

    is_here: bool
    key: str
    for_s: float
    driver: Kernel
    hosts: list[int]
    meshes: dict[int, ProcsState] = field(default_factory=dict)


class Kernel:
    def __init__(self, world: World, process: int) -> None:
        self.world = world
        self.process = process
        self.pid = world.new_pid()
        self.loop = Loop(world.clock)
        self.address = f"{HERE}:{process:x}"
        self.is_over = False
        self.is_taking_over = False
        self.meshes: dict[int, ProcsState] = {}
        self.records: list[Record] = []
        """Of what it keeps, and drives."""
        place: Any = Place(world.here, self.loop)
        self.proc = Proc(
            process=process,
            agent=world.local_agent,
            controller=process,
            run_dir=place,
            config=world.config,
        )
        self.supervision = Supervision(self.proc, {}, self._root_failed)
        self.spawner = Spawner(self.proc, self.supervision)
        links: Any = self.proc.links
        self._links: Links = links
        self.gateway = self._new_gateway()
        self._links.relay_through(GatewayRelay(self.gateway, process))
        self._hosts: set[int] = set()
        self.places = Places(self._keeps)
        self._watchers = Watchers(self.proc, self._agent_on)
        self._intensities: dict[int, Intensity] = {}
        self._old = self._wants_agent = 0
        self._key = ""
        self.supervision.on_exit.append(self._watchers.exited)
        self.supervision.on_exit.append(self._lost)

    def _new_gateway(self) -> SimulatedHost:
        return SimulatedHost(
            NOWHERE,
            HERE,
            self.loop,
            Timing.of(self.world.config),
            on_lost=self._host_lost,
            on_pulse=self._host_pulse,
            here=Reached(self.world.here, {self.process: self._links.take}),
            fan_out=self.world.config.fan_out,
        )

    def start(self) -> None:
        supervision = self.supervision
        self.proc.start([
            serve(messages.Exited, supervision.on_exited),
            serve(messages.Silent, supervision.on_silent),
            serve(messages.Heard, supervision.on_heard),
            serve(messages.Watch, self._watchers.on_watch),
            serve(messages.Spawned, lambda _told, _message: None),
            serve(messages.ZygoteFailed, self._zygote_failed),
            serve(keeping.TakenOver, self._taken_over),
        ])  # fmt: skip

    def _keeps(self, host: int) -> bool:
        return self.is_taking_over or any(host in each.hosts for each in self.records)

    # hosts

    def link(self, host: int, secret: Secret, dial: Sequence[str]) -> None:
        self._hosts.add(host)
        self.gateway.link(host, secret, [str(host)], dial)

    def offered(
        self, offered: Offer, answer: Callable[[tuple[int, Secret] | Refused], object]
    ) -> None:
        """Be asked by a host whose controller has gone whether it may come back."""
        if self.is_over:
            return
        known = self.gateway.awaited(offered.host)
        place = self.places.find(offered, is_coming=known is not None)
        if isinstance(place, Refused):
            answer(place)
            return
        if known is not None:
            answer((self.process, known))
            return
        self.places.fill(place)
        secret = Secret.new()
        self._hosts.add(place.host)
        self.gateway.link(place.host, secret, offered.addresses, [], is_back=place.is_back)
        answer((self.process, secret))

    def _agent_on(self, host: int) -> int | None:
        if host == HERE:
            return self.proc.agent
        return wire.agent_id(host) if host in self._hosts else None

    def _host_pulse(self, host: int, silent_s: float | None) -> None:
        there = self.supervision.processes_on(host)
        processes = [each for each in there if each not in self.proc.dead]
        self.supervision.note_pulse([wire.agent_id(host), *processes], silent_s)

    def _host_lost(self, host: int, why: str, silent_s: float | None) -> None:
        self.world.ledger.host_lost(host)
        lost = (wire.agent_id(host), *self.supervision.processes_on(host))
        self.supervision.exited(
            *(Exit(each, reason=why, unreachable_s=silent_s or 0.0) for each in lost)
        )

    def _lost(self, gone: Exit) -> None:
        self.gateway.ended(gone.process)
        if gone.reason != _TAKEN:  # else it goes on
            self.world.ledger.told_dead(self.process, gone.process)

    def _zygote_failed(self, failed: messages.ZygoteFailed, message: Message) -> None:
        below = self._processes_below(message.source)
        lost = [each for each in failed.procs if each in below]
        self.supervision.exited(*(Exit(each, signal=9, reason=failed.text) for each in lost))

    def _processes_below(self, agent: int) -> list[int]:
        return [
            process
            for state in list(self.meshes.values())
            for process, of in zip(state.processes, state.agents, strict=True)
            if of == agent and process not in self.proc.dead
        ]

    def local_agent_ended(self) -> None:
        agent = self.proc.agent
        self.proc.replace_agent(self.world.local_agent)
        lost = [agent, *self._processes_below(agent)]
        self.supervision.exited(*(Exit(each, reason="its agent was killed") for each in lost))

    # meshes

    def spawn(self, agents: Sequence[int], each: int) -> ProcsState:
        """Start so many ranks on each of these hosts."""
        places = [agent for agent in agents for _ in range(each)]
        processes = [self.world.new_process(agent >> HOST_SHIFT) for agent in places]
        mesh = mesh_of(self.world.new_mesh_number(), processes, places)
        mesh.homes[:] = [Seat(agent, 0) for agent in places]
        self._own(mesh, list(range(len(places))))
        return mesh

    def _own(self, mesh: ProcsState, ranks: list[int]) -> None:
        self.meshes[mesh.number] = mesh
        self._intensities[mesh.number] = Intensity(_FEW_RESTARTS)
        self.spawner.spawn_procs(mesh, functools.partial(self._request, mesh), ranks)

    def _request(self, mesh: ProcsState, ranks: list[int], port: int) -> None:
        by_agent: dict[int, list[int]] = {}
        for rank in ranks:
            by_agent.setdefault(mesh.agents[rank], []).append(rank)
        for agent, some in by_agent.items():
            processes = [mesh.processes[rank] for rank in some]
            spawn = messages.Spawn(
                processes, owner=self.process, ranks=some, mesh=mesh.number, ready_port=port
            )
            self.proc.ask(agent, spawn, functools.partial(self._spawned, agent, processes))

    def _spawned(self, agent: int, processes: list[int], answer: Done | Refused) -> None:
        if isinstance(answer, Refused):
            lost = self.proc.dead.get(agent) or Exit(0, reason=answer.error)
            self.supervision.exited(*(lost.also_of(each) for each in processes))

    def _root_failed(self, failure: MeshFailure, _seen: bool) -> None:
        # the mesh is healed by itself, if that is not too often, once everybody has been told
        mesh = failure.state
        if isinstance(mesh, ProcsState) and mesh.ended is None:
            allows = self._intensities[mesh.number].allows
            now = self.world.clock.now
            if sum(allows(rank, now) for rank in failure.crashed_ranks):
                self.loop.after(self.world.some_s(1.0), lambda: self.heal(mesh))

    def heal(self, mesh: ProcsState) -> None:
        """Start lost ranks again, where there is a place for them."""
        lost = [rank for rank, each in enumerate(mesh.processes) if each in self.proc.dead]
        is_silent = any(mesh.agents[rank] in self.supervision.silent for rank in lost)
        if self.is_over or mesh.ended is not None or mesh.only_seen or not lost or is_silent:
            return
        hosts: Any = self
        try:
            seats = Seats(hosts, mesh, lost).find()
        except SupervisionError:
            return
        mesh.next_generation()
        for rank, seat in seats.items():
            mesh.take_seat(rank, seat, self.world.new_process(seat.agent >> HOST_SHIFT))
        mesh.restore(lost)
        assert mesh.respawn is not None
        mesh.respawn(lost)
        self._write_down(mesh)

    # what `Seats` asks

    def living_agent(self, agent: int) -> int:
        return self.proc.agent if agent >> HOST_SHIFT == HERE else agent

    def replace_hosts(self, _agents: Sequence[int]) -> Mapping[int, int]:
        return {}

    def gpus_of(self, _agent: int) -> Sequence[str]:
        return ()

    def host_words(self, agent: int) -> str:
        return f"host {agent >> HOST_SHIFT}"

    loss_words = host_words

    def stop(self, mesh: ProcsState) -> None:
        """End the ranks of a mesh."""
        if mesh.ended is None and mesh.only_seen is None:
            number = self.world.new_number()
            self.world.ledger.called(number, self.process, tuple(mesh.processes))
            stopped = self.spawner.stop_procs(mesh, "it was stopped")
            stopped.add_done_callback(lambda _: self.world.ledger.ended(number))
            for record in self.records:
                record.meshes.pop(mesh.number, None)

    def kill(self, mesh: ProcsState, rank: int) -> None:
        if mesh.only_seen is None:
            self.proc.control(mesh.agents[rank], messages.Kill([mesh.processes[rank]]))

    def call(self, mesh: ProcsState, ranks: Sequence[int], order: Order) -> Any:
        """Call some ranks, or one; None: they cannot be called."""
        try:
            mesh.check(ranks, "step")
        except SupervisionError:
            return None
        processes = [mesh.processes[rank] for rank in ranks]
        target = Target(mesh, "step", processes, ranks, shape_of(len(ranks)))
        call = call_one if len(ranks) == 1 else call_all
        return call(self.world.ledger, self.proc, target, order)

    # the end

    def die(self) -> None:
        """Be killed."""
        for link in self.gateway.links:
            if isinstance(link, SimulatedLink) and link.connected_by is not None:
                link.connected_by.close()
        self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = self.loop.is_over = True
            self.world.ledger.forget_calls_of(self.process)
            self.world.kernel_ended(self)

    def close(self) -> None:
        """End in order: say to all hosts that it leaves."""
        if not self.is_over:
            self.gateway.leave_all()
            self._end()

    # keeping, and being taken over

    def keep(self, meshes: Iterable[ProcsState], record: Record) -> None:
        """Have meshes go on when this process has gone."""
        record.meshes.update((each.number, each) for each in meshes)
        self.records.append(record)
        self._renew(record)

    def _renew(self, record: Record) -> None:
        procs: dict[int, list[int]] = {wire.agent_id(host): [] for host in record.hosts}
        for mesh in record.meshes.values():
            for agent, process in zip(mesh.agents, mesh.processes, strict=True):
                procs.setdefault(agent, []).append(process)
        wanted = {
            agent: keeping.Keep(some, record.for_s, record.key)
            for agent, some in procs.items()
            if agent not in self.proc.dead
        }
        Question(self.proc, wanted)

    def _write_down(self, mesh: ProcsState) -> None:
        for record in self.records:
            if mesh.number in record.meshes:
                self._renew(record)

    def _taken_over(self, taken: keeping.TakenOver, _: Message) -> None:
        agent = self.proc.agent
        self.proc.replace_agent(self.world.new_process(HERE))
        lost = [agent, *self._processes_below(agent)]
        self._see_only([each for each in self.meshes.values() if agent in each.agents], taken.who)
        self.records = [each for each in self.records if not each.is_here]
        exits = (Exit(each, reason=_TAKEN, for_good=True) for each in lost)
        self.supervision.exited(*exits)

    def _see_only(self, meshes: Collection[ProcsState], who: str) -> None:
        for mesh in meshes:
            mesh.only_see(f"{who} has taken it over")

    def let_go(self, who: str) -> None:
        """Leave the hosts of kept meshes to another kernel."""
        for record in [each for each in self.records if not each.is_here]:
            self.records.remove(record)
            self._see_only(record.meshes.values(), who)
        self.places.leave()
        self.world.free(self)
        hosts = [link.host for link in self.gateway.links]
        for host in hosts:
            self.gateway.let_go(host)
        for host in hosts:
            self._host_lost(host, _TAKEN, None)

    # taking over

    def take_over(self, record: Record, key: str, *, fence: bool) -> None:
        """Drive the meshes of a record in the place of the kernel that has written it; end where
        that cannot be."""
        self._key = key
        self.is_taking_over = True
        self._old = record.driver.process  # as it is written down now
        self._wants_agent = self.proc.agent
        self.world.ledger.seen["kernels that want to take over"] += 1
        if not record.driver.is_over and not fence:
            self.close()
        elif record.is_here:
            adopt = keeping.Adopt(key, self.pid, f"{self.process:x}", fence)
            self._ask_agents(record, [self.proc.agent], adopt)
        else:
            if not record.driver.is_over:
                self.loop.after(self.world.some_s(0.1), lambda: self._ask_to_let_go(record))
            self.loop.after(0.2, lambda: self._find(record, self.world.clock.now + _FREE_S))

    def _ask_to_let_go(self, record: Record) -> None:
        driver = record.driver
        if driver is not self and not driver.is_over and self._key == record.key:
            driver.loop.turn(lambda: driver.let_go(f"{self.process:x}"))

    def _find(self, record: Record, limit: float) -> None:
        if self.world.listen(self):
            self.places.await_back(self.world.job, record.hosts)
            for host in record.hosts:
                self.gateway.expect(host)
            self._await_hosts(record, self.world.clock.now + _COME_S)
        elif self.world.clock.now < limit:
            self.loop.after(_LOOK_S, lambda: self._find(record, limit))
        else:
            self.close()

    def _await_hosts(self, record: Record, limit: float) -> None:
        if self._hosts.issuperset(record.hosts) or self.world.clock.now > limit:
            for host in record.hosts:
                if host not in self._hosts:
                    self._lose_missing(host)
            agents = [wire.agent_id(host) for host in record.hosts if host in self._hosts]
            self._ask_agents(record, agents, keeping.Adopt(self._key, 0, f"{self.process:x}"))
        else:
            self.loop.after(_LOOK_S, lambda: self._await_hosts(record, limit))

    def _ask_agents(self, record: Record, agents: Sequence[int], adopt: keeping.Adopt) -> None:
        asked = Question(self.proc, dict.fromkeys(agents, adopt))
        limit = self.world.clock.now + _ANSWER_S

        def look() -> None:
            if not asked.is_over and self.world.clock.now < limit:
                self.loop.after(_LOOK_S, look)
                return
            answers = asked.answers.items()
            found = {each: told for each, told in answers if isinstance(told, keeping.Adopted)}
            if found:
                self._adopt(record, found)
            else:
                self.close()

        look()

    def _adopt(self, record: Record, adopted: Mapping[int, keeping.Adopted]) -> None:
        if record.is_here and self.proc.agent != self._wants_agent:
            self.close()  # another one has taken over meanwhile
            return
        self.world.ledger.seen["kernels that took over"] += 1
        record.driver = self
        self.records.append(record)
        for mesh in list(record.meshes.values()):
            mine = mesh_of(mesh.number, list(mesh.processes), list(mesh.agents))
            mine.homes[:] = mesh.homes
            record.meshes[mesh.number] = mine
            self._own(mine, [])
        for host in [] if record.is_here else record.hosts:
            if wire.agent_id(host) not in adopted and wire.agent_id(host) not in self.proc.dead:
                self._lose_missing(host)
        living = {each for told in adopted.values() for each in told.procs}
        self._watch_the_dead(record, living)
        take = dict.fromkeys(sorted(living), keeping.TakeControl(self._old))
        Question(self.proc, take, self._has_taken_over)
        self._renew(record)

    def _has_taken_over(self) -> None:
        self.is_taking_over = False

    def _lose_missing(self, host: int) -> None:
        self.places.give_up(host)
        if host in self._hosts:
            self.gateway.let_go(host)
        else:
            self.gateway.give_up(host)
        self._host_lost(host, "it has not come back", None)

    def _watch_the_dead(self, record: Record, living: set[int]) -> None:
        gone: dict[int, list[int]] = {}
        dead = self.proc.dead
        for mesh in record.meshes.values():
            for process, agent in zip(mesh.processes, mesh.agents, strict=True):
                if process not in dead and (process not in living or agent in dead):
                    gone.setdefault(agent, []).append(process)
        self.supervision.ask_how_they_ended(gone)
        self.proc.watching(living)
