"""On which hosts the lost ranks of a mesh are started again.

Each goes back to where it was; else to the host that has taken the place of its own: a spare, or
one that has joined again; else beside others of the mesh, all ranks of a host together. Ranks that
use GPUs share none that way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from monarch_nb.core.errors.folding import rank_words
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.data import gpus
from monarch_nb.errors import SupervisionError
from monarch_nb.meshes.hosts import Hosts
from monarch_nb.meshes.states import ProcsState, Seat

_log: Final = logging.getLogger(__name__)
_BACK: Final = "Bring a host back, then: mesh.heal(), or %mesh heal."
_SHRINK: Final = " Or go on without its ranks: mesh.heal(shrink=True), or %mesh heal --shrink."


class Seats:
    """Those of the lost ranks of a mesh."""

    def __init__(self, hosts: Hosts, state: ProcsState, lost: Sequence[int]) -> None:
        self._hosts = hosts
        self._state = state
        self._lost = lost
        self._dead = hosts.proc.dead
        self._seats = {rank: state.seat(rank) for rank in range(len(state.processes))}

    def find(self) -> dict[int, Seat]:
        """Find a seat for each. May wait for hosts to join.

        Raises `SupervisionError`, which names the hosts that are lost, where there is none.
        """
        homeless: dict[int, list[int]] = {}
        for rank in self._lost:
            seat = self._seats[rank] = self._own(rank)
            if seat.agent in self._dead:
                homeless.setdefault(seat.agent, []).append(rank)
        if homeless:
            for agent, new in self._hosts.replace_hosts(list(homeless)).items():
                for rank in homeless.pop(agent):
                    self._seats[rank] = Seat(new, self._seats[rank].slot)
        if homeless:
            self._sit_beside_others(homeless)
        return {rank: self._seats[rank] for rank in self._lost}

    def moves(self) -> list[str]:
        """Say which ranks are on other hosts than before."""
        moved: dict[int, list[int]] = {}
        for rank in self._lost:
            agent = self._seats[rank].agent
            if agent >> HOST_SHIFT != self._state.agents[rank] >> HOST_SHIFT:
                moved.setdefault(agent, []).append(rank)
        return [self._move(agent, ranks) for agent, ranks in moved.items()]

    def _own(self, rank: int) -> Seat:
        was = self._seats[rank]
        seat = self._state.homes[rank] if was.agent in self._dead else was
        return seat._replace(agent=self._hosts.living_agent(seat.agent))

    def _sit_beside_others(self, homeless: Mapping[int, list[int]]) -> None:
        out = {rank for ranks in homeless.values() for rank in ranks}
        counts = Counter(seat.agent for rank, seat in self._seats.items() if rank not in out)
        if not counts:
            raise self._cannot(homeless, "and none of its hosts lives")
        for rank in out:
            del self._seats[rank]
        for ranks in homeless.values():
            agent = min(counts, key=lambda each: counts[each])
            for rank in ranks:
                slot = self._free_slot(agent, rank)
                if slot is None:
                    host = self._hosts.host_words(agent)
                    raise self._cannot(homeless, f"and {host} has no GPU free for rank {rank}")
                self._seats[rank] = Seat(agent, slot)
            counts[agent] += len(ranks)
            _log.warning("%s: %s", self._state.name, self._move(agent, ranks))

    def _free_slot(self, agent: int, rank: int) -> int | None:
        home = self._state.homes[rank]
        if not self._seen(rank, home.agent):
            return home.slot
        taken = {
            gpu
            for other, seat in self._seats.items()
            if seat.agent == agent and (gpu := gpus.gpu_of(seat.slot, self._seen(other, agent)))
        }
        return next(iter(gpus.free_slots(taken, self._seen(rank, agent))), None)

    def _seen(self, rank: int, agent: int) -> tuple[str, ...]:
        # the GPUs that the rank sees, or would see, on this host
        return gpus.gpus_seen(self._state.chosen_gpus[rank], self._hosts.gpus_of(agent))

    def _move(self, agent: int, ranks: Sequence[int]) -> str:
        others = [rank for rank in self._seats if self._is_beside(rank, agent, ranks)]
        beside = f", beside {rank_words(others)}" if others else ""
        verb = "is" if len(ranks) == 1 else "are"
        return f"{rank_words(ranks)} {verb} on {self._hosts.host_words(agent)} now{beside}"

    def _is_beside(self, rank: int, agent: int, ranks: Sequence[int]) -> bool:
        return rank not in ranks and self._seats[rank].agent == agent

    def _cannot(self, homeless: Mapping[int, Collection[int]], why: str) -> SupervisionError:
        lost = "".join(f"\n  {self._hosts.loss_words(agent)}" for agent in homeless)
        ranks = sorted(rank for some in homeless.values() for rank in some)
        shrink = _SHRINK if len(self._lost) < len(self._state.processes) else ""
        return SupervisionError(
            f"{self._state.name} cannot be healed: no host takes the place of what is lost, {why}."
            f"{lost}\n{_BACK}{shrink}",
            ranks=tuple(ranks),
        )
