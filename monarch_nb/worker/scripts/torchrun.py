"""The world of a script, and the environment in which `torchrun` would start it there."""

from __future__ import annotations

import dataclasses
import os
from typing import Final

from monarch_nb.core.wire.messages.cells import Script
from monarch_nb.services.spmd import LOOPBACK, TorchrunPlace
from monarch_nb.worker.groups.rendezvous import LOCAL_NAMES

ROLE: Final = "default"  # torchrun's


@dataclasses.dataclass(frozen=True)
class ScriptWorld:
    """The ranks that run a script, which count from 0 there.

    `members` are their ranks on the mesh in order, `hosts` the host of each; `run` is a name for
    this run, and `port` one that is free on this host.
    """

    members: list[int]
    hosts: list[int]
    rank: int
    run: str
    port: int

    @staticmethod
    def of(script: Script, member: int) -> ScriptWorld:
        """As a message of the controller has it, for the rank `member` of the mesh."""
        members = script.ranks
        return ScriptWorld(members, script.hosts, members.index(member), script.run, script.port)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def environment(self) -> dict[str, str]:
        """What a script may read. The address of a master that the user has chosen stays."""
        here, groups = self.hosts[self.rank], list(dict.fromkeys(self.hosts))
        local_rank, local_size = self.hosts[: self.rank].count(here), self.hosts.count(here)
        place = TorchrunPlace(self.rank, self.size, local_rank, local_size, groups.index(here))
        values = {
            **place.environment(),
            **place.groups(len(groups), ROLE),
            "TORCHELASTIC_RUN_ID": self.run,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # there is none: no process listens
        }
        if os.environ.get("MASTER_ADDR", "") in LOCAL_NAMES:
            values |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(self.port)}
        return values
