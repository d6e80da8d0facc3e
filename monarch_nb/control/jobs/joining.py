"""`JoiningJob`: hosts that an engine starts, which dial this program and end with it.

What all such engines share: hosts of a mesh by their places, spares among them, those that are
asked for again in the place of lost ones, starts that are partial, and more or fewer hosts later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from monarch_nb.control.client import Client, client
from monarch_nb.control.hosts.replacements import HostGroup
from monarch_nb.control.jobs.job import JobState, JobTrait
from monarch_nb.control.jobs.status import JobStatus, Stage
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.errors import LaunchError
from monarch_nb.meshes.proc_mesh import HostMesh, mesh_of_hosts
from monarch_nb.net import wire

_LET_GO_S: Final = 6.0
_WITHOUT: Final = "the job goes on without it"


@dataclasses.dataclass
class MeshHosts:
    """The hosts of one mesh of a job, by their numbers: at each place the newest, spares last."""

    hosts: list[int]
    spares: int
    groups: list[HostGroup]
    mesh: HostMesh
    asked: int
    places: int
    """How many there ever were: the next one is called by this number."""
    awaited: list[int]
    """Those of the start, or of the last that was asked for in addition: without them it fails."""
    is_settled: bool = False

    def has_known(self, host: int) -> bool:
        return any(host in group.hosts for group in self.groups)

    def replace(self, lost: int, new: int) -> None:
        self.hosts[:] = [new if host == lost else host for host in self.hosts]

    def settle(self, came: Sequence[int]) -> None:
        """Be of those that have come, and of nobody else."""
        used = came[: len(self.hosts) - self.spares]
        self.hosts, self.spares = list(came), len(came) - len(used)
        self.awaited = list(came)
        for group in self.groups:
            group.keep_only(came, came[len(used) :])
        self.mesh, self.is_settled = _mesh_of(used), True

    def grow(self, group: HostGroup) -> None:
        more = [wire.agent_id(host) for host in group.hosts]
        at = len(self.hosts) - self.spares
        self.hosts[at:at] = group.hosts
        self.awaited = list(group.hosts)
        self.asked = len(self.hosts)
        self.places += len(group.hosts)
        self.groups.append(group)
        self.mesh = mesh_of_hosts([*self.mesh._agents, *more])

    def shrink(self, count: int) -> list[int]:
        """Keep so many hosts; return the numbers of the others."""
        agents = self.mesh._agents
        self.mesh = mesh_of_hosts(agents[:count])
        gone = [agent >> HOST_SHIFT for agent in agents[count:]]
        self.hosts[:] = [host for host in self.hosts if host not in gone]
        self.awaited = []
        self.asked = len(self.hosts)
        return gone


class JoiningJob(JobTrait):
    """A job whose hosts join this program.

    An engine says how one is asked for again in the place of a lost one (`_ask_again`), how more
    are (`_ask_more`), and what becomes of those that are not wanted any more (`_let_go`).
    """

    def __init__(self, min_hosts: int | None = None) -> None:
        super().__init__()
        if min_hosts is not None and min_hosts < 1:
            raise ValueError(f"min_hosts={min_hosts}: a mesh has at least one host")
        self._min_hosts = min_hosts
        self._spares: dict[str, int] = {}
        self._job_meshes: dict[str, MeshHosts] = {}
        self._job_controller: Client | None = None  # that has its hosts

    @abstractmethod
    def _ask_again(self, lost: int) -> int:
        """Ask for a host in the place of a lost one; return its number. Raises nothing: what the
        engine refuses is the end of the wait for that host."""

    @abstractmethod
    def _ask_more(self, name: str, count: int, places: Sequence[str]) -> list[int]:
        """Ask for so many more hosts of a mesh; return their numbers."""

    def _let_go(self, hosts: Sequence[int]) -> None:
        """Give back what the engine keeps for hosts that have ended."""

    def _keep(self) -> dict[str, Any]:
        """Return what the engine needs besides to have its hosts again, as JSON. Raises
        `LaunchError` where they end with this program."""
        raise LaunchError(
            f"the hosts of a {type(self).__name__} end with the program that has asked for them"
        )

    def _have_again(self, kept: dict[str, Any]) -> None:
        """Take what `_keep` has returned in another program."""

    def check_kept(self) -> None:
        self._keep()

    def kept_hosts(self) -> list[int]:
        return self._hosts()

    def kept_state(self) -> dict[str, Any]:
        meshes = {
            name: [each.hosts, each.spares, each.asked, each.places, len(each.mesh)]
            for name, each in self._job_meshes.items()
        }
        return {"meshes": meshes, "engine": self._keep()}

    def go_on(self, state: dict[str, Any]) -> None:
        for name, (hosts, spares, asked, places, used) in state["meshes"].items():
            group = self._replaced(list(hosts), list(hosts[len(hosts) - spares :]))
            mesh = _mesh_of(hosts[:used])
            self._job_meshes[name] = MeshHosts(
                list(hosts), spares, [group], mesh, asked, places, awaited=[], is_settled=True
            )
        self._job_id = str(uuid.uuid4())
        self._have_again(state["engine"])

    def can_run(self, spec: JobTrait) -> bool:
        """Return False: the hosts have ended with the program that had them."""
        del spec
        return False

    def settle(self) -> None:
        found = {name: self._here(each.hosts) for name, each in self._job_meshes.items()}
        for name, here in found.items():
            if len(here) < (self._min_hosts or len(self._job_meshes[name].hosts)):
                raise LaunchError(self._too_few(name, len(here)))
        for name, here in found.items():
            each = self._job_meshes[name]
            others = [host for host in each.hosts if host not in here]
            each.settle(here)
            for host in others:
                self._controller.give_up_host(host, _WITHOUT)

    def has_enough(self) -> bool:
        return self._min_hosts is not None and all(
            len(self._here(each.hosts)) >= self._min_hosts for each in self._job_meshes.values()
        )

    def scale(self, name: str, hosts: int, places: Sequence[str] = ()) -> HostMesh:
        check_scale(name, hosts, self._job_meshes)
        found = self._job_meshes[name]
        now = len(found.mesh)
        if hosts > now:
            more = self._ask_more(name, hosts - now, places)
            found.grow(self._replaced([*more], []))
        elif hosts < now:
            end_hosts(self._controller, found.mesh, hosts)
            self._let_go(found.shrink(hosts))
        return found.mesh

    def _furnish(self, name: str, hosts: Sequence[int]) -> None:
        """Have these hosts, which were asked for, as a mesh; the last are its spares."""
        spares = self._spares.get(name, 0)
        used = hosts[: len(hosts) - spares]
        group = self._replaced(list(hosts), list(hosts[len(used) :]))
        count = len(hosts)
        found = MeshHosts(
            list(hosts), spares, [group], _mesh_of(used), count, count, awaited=list(hosts)
        )
        self._job_meshes[name] = found

    def _replaced(self, hosts: list[int], spares: list[int]) -> HostGroup:
        group = HostGroup(hosts, spares, self._again)
        self._job_controller = client()
        self._job_controller.replace_from(group)
        return group

    @property
    def _controller(self) -> Client:
        assert self._job_controller is not None, "it has hosts"
        return self._job_controller

    def _again(self, lost: int) -> int:
        new = self._ask_again(lost)
        for each in self._job_meshes.values():
            each.replace(lost, new)
        return new

    def _state(self) -> JobState:
        if self._min_hosts is not None and not self._is_settled():
            self._wait(None)
            self.settle()
        return JobState({name: each.mesh for name, each in self._job_meshes.items()})

    def _is_settled(self) -> bool:
        return all(each.is_settled for each in self._job_meshes.values())

    def _wait(self, limit_s: float | None) -> None:
        """Wait until each host has come or will not, or for so long."""
        until = None if limit_s is None else time.monotonic() + limit_s
        with contextlib.suppress(TimeoutError):
            for host in self._hosts():
                left_s = None if until is None else max(0.0, until - time.monotonic())
                self._controller.host_ready(host).exception(left_s)

    def _hosts(self) -> list[int]:
        return [host for each in self._job_meshes.values() for host in each.hosts]

    def _new_places(self, name: str, count: int) -> range:
        first = self._job_meshes[name].places
        return range(first, first + count)

    def _asked(self) -> int:
        return sum(each.asked for each in self._job_meshes.values())

    def _count_here(self) -> int:
        return self._controller.hosts_here(self._hosts())

    def _stands(self, engine: str, stage: Stage, reason: str, name: str = "") -> JobStatus:
        # counted after the stage was found: hosts may come meanwhile, so "up" never has too few
        return JobStatus(engine, stage, self._count_here(), self._asked(), name, reason)

    def _stands_by_hosts(self, engine: str, name: str = "") -> JobStatus:
        # where the engine knows nothing besides
        hosts = self._hosts()
        if (why := self._why_hopeless()) is not None:
            return self._stands(engine, Stage.GONE, why, name)
        if may_come(self._controller, hosts):
            return self._stands(engine, Stage.JOINING, "", name)
        lost = len(hosts) - self._count_here()
        if lost == len(hosts):
            return self._stands(engine, Stage.GONE, "its hosts have ended", name)
        words = f"{lost} of its hosts {'has' if lost == 1 else 'have'} ended" if lost else ""
        return self._stands(engine, Stage.UP, words, name)

    def _stands_with(self, engine: str, name: str, parts: Iterable[tuple[Stage, str]]) -> JobStatus:
        # as far as that of its parts that is least far; they are asked where hosts may come
        if (why := self._why_hopeless()) is not None:
            return self._stands(engine, Stage.GONE, why, name)
        stages, whys = zip(*parts, strict=True)
        reason = "\n".join(dict.fromkeys(filter(None, whys)))
        return self._stands(engine, min(stages, key=list(Stage).index), reason, name)

    def _here(self, hosts: Iterable[int]) -> list[int]:
        return [host for host in hosts if self._controller.hosts_here([host])]

    def _why_not_here(self, host: int) -> str | None:
        # and never will be; None where it is, or may
        ready = self._controller.host_ready(host)
        error = ready.exception(0) if ready.done() else None
        return None if error is None else str(error)

    def _why_hopeless(self) -> str | None:
        """Say why the hosts that are wanted will not come; None while they may."""
        for each in self._job_meshes.values():
            failed = [why for host in each.awaited if (why := self._why_not_here(host)) is not None]
            wants_all = self._min_hosts is None or each.is_settled
            least = len(each.awaited) if wants_all else self._min_hosts or 0
            if len(each.awaited) - len(failed) < least:
                return failed[0]
        return None

    def _too_few(self, name: str, count: int) -> str:
        asked = self._job_meshes[name].hosts
        failed = [why for host in asked if (why := self._why_not_here(host)) is not None]
        whys = "".join(f"\n{why}" for why in dict.fromkeys(failed))
        return f"{name}: {count} of {len(asked)} hosts are here, {self._min_hosts} are wanted{whys}"

    def _load_fields(self, fields: dict[str, Any]) -> None:
        fields.setdefault("_spares", {})  # of an older version
        fields.setdefault("_min_hosts", None)
        super()._load_fields(fields)
        self._job_meshes, self._job_controller = {}, None


def check_scale(name: str, hosts: int, meshes: Collection[str]) -> None:
    """Raise `ValueError` unless a mesh of this name is there and can have so many hosts."""
    if name not in meshes:
        known = ", ".join(meshes) or "none: job.state() gets its hosts"
        raise ValueError(f"{name!r} is no mesh of this job that has hosts; it has {known}")
    if hosts < 1:
        raise ValueError(f"hosts={hosts}: a mesh has at least one host")


def end_hosts(controller: Client, mesh: HostMesh, keep: int) -> None:
    """Shut down all hosts but the first. Raises `RuntimeError` where one of them has ranks."""
    agents = mesh._agents[keep:]
    if meshes := controller.meshes_on(agents):
        raise RuntimeError(
            f"{', '.join(meshes)} has ranks on hosts that would be given back: "
            f"procs.resize(hosts.slice(hosts=slice({keep}))) ends them"
        )
    hosts = [agent >> HOST_SHIFT for agent in agents]
    here = [wire.agent_id(host) for host in hosts if controller.hosts_here([host])]
    for host in hosts:
        controller.give_up_host(host, "it was let go")
    with contextlib.suppress(TimeoutError):
        controller.let_hosts_go(agents, here).get(_LET_GO_S)


def may_come(controller: Client, hosts: Iterable[int]) -> list[int]:
    """Return those hosts of which it is not known yet whether they come."""
    return [host for host in hosts if not controller.host_ready(host).done()]


def _mesh_of(hosts: Sequence[int]) -> HostMesh:
    return mesh_of_hosts([wire.agent_id(host) for host in hosts])
