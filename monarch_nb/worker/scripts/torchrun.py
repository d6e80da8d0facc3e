"""The world of a script, and the environment in which `torchrun` would start it there."""

from __future__ import annotations

import dataclasses
import os
from typing import Final

from monarch_nb.core.wire.messages.cells import Script
from monarch_nb.worker.groups.rendezvous import LOCAL_NAMES

ROLE: Final = "default"  # torchrun's


@dataclasses.dataclass(frozen=True)
class World:
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
    def of(script: Script, member: int) -> World:
        """As a message of the controller has it, for the rank `member` of the mesh."""
        members = script.ranks
        return World(members, script.hosts, members.index(member), script.run, script.port)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def environment(self) -> dict[str, str]:
        """What a script may read. The address of a master that the user has chosen stays."""
        here, groups = self.hosts[self.rank], list(dict.fromkeys(self.hosts))
        values: dict[str, object] = {
            "RANK": self.rank,
            "WORLD_SIZE": self.size,
            "LOCAL_RANK": self.hosts[: self.rank].count(here),
            "LOCAL_WORLD_SIZE": self.hosts.count(here),
            "GROUP_RANK": groups.index(here),
            "GROUP_WORLD_SIZE": len(groups),
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": self.size,
            "ROLE_NAME": ROLE,
            "TORCHELASTIC_RUN_ID": self.run,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_USE_AGENT_STORE": False,  # there is none: no process listens
        }
        if os.environ.get("MASTER_ADDR", "") in LOCAL_NAMES:
            values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.port}
        return {name: str(value) for name, value in values.items()}
