"""A host of a job: its gateway is the real one, and so is its agent's mind. What the process in
which they are does is simulated, in the order of `host/member.py` and `host/join.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.codec import Refused
from monarch_nb.core.wire.messages.hosts import OVER, PROTOCOL, Offer
from monarch_nb.net import wire
from monarch_nb.net.hosts.handshake import Secret
from monarch_nb.net.hosts.link import LEFT, Timing
from tests.simulation.agents import Agent
from tests.simulation.clock import Loop
from tests.simulation.site import NOWHERE, Links, Place, Reached, Site
from tests.simulation.sockets import SimulatedHost, SimulatedLink

if TYPE_CHECKING:
    from tests.simulation.world import World

_SHUT_S = 1.0
_PAUSE_S = 0.1
_OFFER_S = 2.0


class Member(SimulatedHost):
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.site = Site(world.clock, number, dawdles=world.plan.dawdles)
        self.is_over = False
        self._is_offering = False
        super().__init__(
            NOWHERE,
            number,
            Loop(world.clock),
            Timing.of(world.config),
            on_lost=lambda _host, why, _silent_s: self._left(why),
            here=Reached(self.site, {}),
            fan_out=world.config.fan_out,
        )
        place = Place(self.site, self.loop)
        Links(place, wire.gateway_id(number), self._from_here).start()
        self.agent: Agent

    def join(self, controller: int, secret: Secret, dial: Sequence[str]) -> None:
        """Be a part of a job: connect to its controller, or wait for that."""
        process = wire.agent_id(self.host)
        self.agent = Agent(self.world, self.site, process, controller, self._agent_ended)
        self.serve(controller >> HOST_SHIFT, secret, dial)

    def die(self) -> None:
        """Be killed, with all that runs here."""
        for link in self.links:
            if isinstance(link, SimulatedLink) and link.connected_by is not None:
                link.connected_by.close()
        self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = self.loop.is_over = self.site.is_over = True
            self.agent.kill()

    def freeze(self, seconds: float) -> None:
        """Let everything on this host stand still for so long."""
        for loop in (
            self.loop,
            self.agent.loop,
            *(each.loop for each in self.agent.ranks.values()),
        ):
            loop.freeze(seconds)

    # what its process does

    def _agent_ended(self, code: int | None) -> None:
        def noticed() -> None:
            if code == 0 or self.is_left:
                self._leave_all()
            else:
                self.leave_controller("its agent was killed")

        self.loop.after(self.world.some_s(0.05), noticed)

    def _leave_all(self) -> None:
        if not self.is_over:
            self.leave_all()
            self._end()

    def _left(self, why: str) -> None:
        if self.is_left:
            self.world.forgive(self.host)
            self._offer_again()
        elif why == LEFT and not self.agent.is_over:
            self.loop.after(_SHUT_S, self._leave_all)
        else:
            self._leave_all()

    def _offer_again(self) -> None:
        if not self._is_offering:
            self._is_offering = True
            self._offer()

    def _offer(self) -> None:
        if not self.is_left or self.is_over:
            self._is_offering = False
            return
        kernel = self.world.listening
        if kernel is None or self.world.is_cut(self.host, kernel.gateway.host):
            self.loop.after(_PAUSE_S, self._offer)
            return
        offered = Offer(PROTOCOL, {}, self.world.job, 0, "simulated", [str(self.host)], self.host)
        asked_at = self.world.clock.now

        def answered(answer: tuple[int, Secret] | Refused) -> None:
            if self.world.clock.now - asked_at > _OFFER_S or self.world.chance(0.02):
                self.loop.after(_PAUSE_S, self._offer)  # the answer did not come in time
            elif isinstance(answer, Refused):
                self._refused(answer)
            else:
                self._is_offering = False
                controller, secret = answer
                self.serve(controller >> HOST_SHIFT, secret, [kernel.address])

        self.loop.after(
            self.world.delay_s(self.host, kernel.gateway.host),
            lambda: kernel.offered(
                offered, lambda answer: self.loop.turn(lambda: answered(answer))
            ),
        )

    def _refused(self, answer: Refused) -> None:
        if answer.kind == OVER:
            self._leave_all()
        else:
            self.loop.after(_PAUSE_S, self._offer)
