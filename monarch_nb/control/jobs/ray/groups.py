"""A placement group of Ray's that a job has, with an actor on each bundle.

Ray removes the group with the program that has asked for it, and ends what runs there; one that is
*lasting* goes by itself when its hosts have ended and no program has it (`seats.py`).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future as Answer
from typing import Any, Final, Self

from monarch_nb.control.client import Client
from monarch_nb.control.jobs.joining import may_come
from monarch_nb.control.jobs.ray.seats import (
    DETACHED,
    NAMESPACE,
    PROGRAM,
    Presence,
    Seat,
    Sweeper,
    named,
)
from monarch_nb.control.jobs.status import Stage
from monarch_nb.host.launch import last_lines

GROUP: Final = "monarch_nb"
_END_S: Final = 6.0
_MADE_S: Final = 60.0  # for Ray to start a process, with an environment to be made for it
_ENDED: Final = "its actor has ended"


class Lasting:
    """What stands behind a group that outlives this program: its sweeper, and the presence of this
    program, which has the group as long as it lives."""

    def __init__(self, ray: Any, name: str, sweeper: Any = None) -> None:
        self.name = name
        self._ray = ray
        place = named(name, f"{PROGRAM}-{secrets.token_hex(4)}")
        self._presence = self._actor(Presence, place, {}).remote()
        self._sweeper = sweeper

    @classmethod
    def found(cls, ray: Any, name: str) -> Self:
        """Have the group of another program. Raises `ValueError` where it has gone."""
        return cls(ray, name, ray.get_actor(name, namespace=NAMESPACE))

    def make(self, bundles: Sequence[object], strategy: str, runtime_env: object) -> None:
        """Have the sweeper make the group."""
        options = {"lifetime": DETACHED, "max_restarts": -1, "runtime_env": runtime_env}
        self._sweeper = self._actor(Sweeper, self.name, options).remote(
            self.name, bundles, strategy
        )

    def group(self) -> Any:
        """Return the group, once Ray has started the sweeper."""
        return self._ray.get(self._sweeper.group.remote(), timeout=_MADE_S)

    def leave(self) -> None:
        """Have it no more; another program does. Harmless when repeated."""
        with contextlib.suppress(Exception):  # of Ray's: it has ended
            self._ray.kill(self._presence)

    def end(self, seats: Iterable[Any]) -> None:
        """Leave nothing of a group that was removed: seats that waited for it would for ever.
        Harmless when repeated."""
        for each in (*seats, self._presence, self._sweeper):
            with contextlib.suppress(Exception):  # of Ray's: it has ended
                self._ray.kill(each)

    def _actor(self, kind: type, name: str, options: Mapping[str, object]) -> Any:
        given = {"num_cpus": 0, "name": name, "namespace": NAMESPACE, **options}
        return self._ray.remote(kind).options(**given)


class Placed:
    """One placement group of a job, its actors by the hosts that they start, and what has become
    of them."""

    def __init__(
        self, ray: Any, controller: Client, group: Any, lasting: Lasting | None = None
    ) -> None:
        self._ray = ray
        self._controller = controller
        self._group = group
        self._lasting = lasting
        self._stays = False
        self._bundles: dict[int, int] = {}  # by host
        self._ended: dict[int, str] = {}
        self._actors: dict[int, Any] = {}
        self._answers: dict[int, Answer[str]] = {}
        self._runtime_env: Mapping[str, Any] = {}

    @classmethod
    def asked(
        cls,
        ray: Any,
        controller: Client,
        bundles: Sequence[Mapping[str, float]],
        runtime_env: Mapping[str, Any],
        *,
        lasting: bool,
    ) -> Self:
        """Ask Ray for a group of these bundles; one that outlives this program is waited for."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        strategy = "STRICT_SPREAD" if len(nodes) >= len(bundles) else "SPREAD"
        name = f"{GROUP}-{secrets.token_hex(4)}"  # Ray wants another one for each
        if not lasting:
            made = ray.util.placement_group(list(bundles), strategy=strategy, name=name)
            return cls(ray, controller, made)
        behind = Lasting(ray, name)
        try:
            behind.make(bundles, strategy, dict(runtime_env))
            return cls(ray, controller, behind.group(), behind)
        except BaseException:
            behind.leave()  # then the sweeper does what is left to do
            raise

    @classmethod
    def found(
        cls,
        ray: Any,
        controller: Client,
        name: str,
        bundles: Mapping[int, int],
        runtime_env: Mapping[str, Any],
    ) -> Self | None:
        """Have the lasting group of another program, with these hosts on its bundles; None where
        Ray has it no more."""
        try:
            behind = Lasting.found(ray, name)
        except ValueError:
            return None
        made = cls(ray, controller, behind.group(), behind)
        made._take(bundles, runtime_env)
        return made

    def _take(self, bundles: Mapping[int, int], runtime_env: Mapping[str, Any]) -> None:
        self._runtime_env, self._stays = runtime_env, True
        for host, bundle in bundles.items():
            self._bundles[host] = bundle
            try:
                place = self._name_of(host)
                actor = self._actors[host] = self._ray.get_actor(place, namespace=NAMESPACE)
            except ValueError:
                self._ended[host] = _ENDED
            else:
                self._follow(host, actor.ended.remote().future())

    def to_json(self) -> list[Any]:
        """Return what `found` takes in another program, of a lasting one."""
        assert self._lasting is not None
        return [self._lasting.name, {str(host): at for host, at in self._bundles.items()}]

    @property
    def id(self) -> str:
        return str(self._group.id.hex())

    @property
    def hosts(self) -> list[int]:
        return list(self._bundles)

    def start(self, hosts: Sequence[int], ticket: bytes, runtime_env: Mapping[str, Any]) -> None:
        """Have an actor on each bundle, as soon as there is one."""
        self._runtime_env = runtime_env
        for index, host in enumerate(hosts):
            self._seat(host, index, ticket, index)

    def seat_again(self, lost: int, host: int, ticket: bytes) -> None:
        """Have another host on the bundle of a lost one, wherever Ray has that now."""
        bundle = self._leave(lost)
        self._seat(host, bundle, ticket, 0)

    def let_go(self, hosts: Collection[int]) -> bool:
        """End the actors of these hosts, which are ending; whether the group is of no use any more.
        Ray keeps its bundles together: one alone cannot be given back."""
        gone = [host for host in self._bundles if host in hosts]
        concurrent.futures.wait([self._answers[host] for host in gone], _END_S)
        for host in gone:
            self._leave(host)
        return not self._bundles

    def _leave(self, host: int) -> int:
        actor = self._actors.pop(host, None)
        with contextlib.suppress(Exception):  # it has ended, in any way
            self._ray.kill(actor)
        self._ended.pop(host, None)
        self._answers.pop(host, None)
        return self._bundles.pop(host)

    def _seat(self, host: int, bundle: int, ticket: bytes, index: int) -> None:
        placed = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        wanted = dict(self._group.bundle_specs[bundle])
        lasts = {"lifetime": DETACHED, "name": self._name_of(host), "namespace": NAMESPACE}
        self._bundles[host] = bundle
        actor = (
            self._ray.remote(Seat)
            .options(
                num_cpus=wanted.pop("CPU", 0),
                num_gpus=wanted.pop("GPU", 0),
                resources=wanted,
                runtime_env=dict(self._runtime_env),
                scheduling_strategy=placed(self._group, placement_group_bundle_index=bundle),
                **({} if self._lasting is None else lasts),
            )
            .remote()
        )
        self._actors[host] = actor  # Ray ends those that nobody holds
        self._follow(host, actor.run.remote(index, ticket).future())

    def _name_of(self, host: int) -> str:
        return "" if self._lasting is None else named(self._lasting.name, str(host))

    def _follow(self, host: int, answer: Answer[str]) -> None:
        self._answers[host] = answer
        answer.add_done_callback(functools.partial(self._over, host))

    def _over(self, host: int, answer: Answer[str]) -> None:
        # a thread of Ray's
        error = answer.exception()
        why = answer.result() if error is None else last_of(error)
        if "No module named 'monarch_nb" in why:
            why += "\nInstall monarch_nb on the nodes, or name it: RayJob(runtime_env={'pip': ...})"
        if host in self._bundles:
            self._ended[host] = why
        self._controller.give_up_host(host, why)

    def give_up(self, why: str) -> None:
        for host in self.hosts:
            self._controller.give_up_host(host, why)

    def end(self, deadline: float) -> None:
        """Wait for the end of hosts that are ending, until then of `time.monotonic()`; remove."""
        if self._record()["state"] == "CREATED":
            concurrent.futures.wait(
                list(self._answers.values()), max(0.0, deadline - time.monotonic())
            )
        self.remove()

    def let_stay(self) -> None:
        """Have it stay when this program ends."""
        self._stays = True

    def leave(self) -> None:
        """Have it no more: another program does."""
        self._stays = True
        if self._lasting is not None:
            self._lasting.leave()

    def close(self) -> None:
        """Give it back at the end of this program, unless it stays."""
        if not self._stays:
            self.remove()

    def remove(self) -> None:
        """Give back what Ray has set apart, with all that runs there. Harmless when repeated."""
        if self._ray.is_initialized():  # else it went with the connection
            self._ray.util.remove_placement_group(self._group)
            if self._lasting is not None:
                self._lasting.end(self._actors.values())
        self._actors.clear()

    def _record(self) -> Mapping[str, Any]:
        if not self._ray.is_initialized():
            return {"state": "REMOVED"}
        found: Mapping[str, Any] = self._ray.util.placement_group_table(self._group)
        return found

    def stage(self, wanted: Mapping[str, float]) -> tuple[Stage, str]:
        """Return where this stands, and why it is not further."""
        record = self._record()
        if record["state"] == "REMOVED":
            return (
                Stage.GONE,
                "its placement group was removed, or the connection to Ray was closed",
            )
        ended = "\n".join(dict.fromkeys(self._ended.values()))
        if len(self._ended) == len(self._bundles):
            return Stage.GONE, ended
        coming = may_come(self._controller, self._bundles)
        if record["state"] == "PENDING" and len(coming) == len(self._bundles):
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            free = self._ray.available_resources()
            return Stage.QUEUED, why_queued(wanted, len(self._bundles), nodes, free)
        return (Stage.JOINING if coming else Stage.UP), ended


def why_queued(
    wanted: Mapping[str, float],
    hosts: int,
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float],
) -> str:
    """Return why so many hosts have to wait, given what the nodes have and what is free of it."""
    each = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
    fit = sum(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in nodes)
    start = f"each host wants {each}: {fit} of {len(nodes)} nodes have that"
    short = [
        f"{free.get(name, 0):g} {name} are free, {amount * hosts:g} are wanted"
        for name, amount in wanted.items()
        if free.get(name, 0) < amount * hosts
    ]
    return "; ".join([start, *short])


def last_of(error: BaseException) -> str:
    """Return the last lines of what Ray says went wrong."""
    # Ray puts ids and addresses between, each behind a tab
    said = [line for line in str(error).splitlines() if line.strip() and line[0] != "\t"]
    return last_lines("\n".join(said), 3)
