"""What runs in processes of Ray's: a seat on each node, which starts a host; and, where hosts may
go on without the program that has asked for them, who sweeps up behind them.

Such seats, their placement group and the sweeper are *detached*: Ray ends none of them with the
program. They end by themselves: a seat with its host, the group and the sweeper when neither a seat
is left nor a program that has the job, which has a `Presence` there for as long as it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from monarch_nb.host.launch import read_last, with_us

NAMESPACE: Final = "monarch_nb"
"""Of the names that Ray knows them by, whatever namespace a program has."""
DETACHED: Final = "detached"
PROGRAM: Final = "program"
"""So begins the place of a program in a group; that of a seat is the number of its host."""
_ANSWERED_S: Final = 2.0  # for the last words to be read
_LOOK_S: Final = 1.0
_LOOKS: Final = 3  # that find nobody: one may come between two


class Seat:
    """Starts the host of one node, tells how that ended, and ends after it.

    The ticket is the argument of a call, which goes from process to process; what an actor is
    constructed with is kept by Ray.
    """

    def __init__(self) -> None:
        self._ended: Future[str] = Future()

    async def run(self, index: int, ticket: bytes) -> str:
        """Be the host of this place until it ends; return its last words."""
        # the thread has to live as long as the host, which ends with it
        threading.Thread(target=self._run, args=(index, ticket), daemon=True).start()
        return await self.ended()

    async def ended(self) -> str:
        """Wait for its end, as another program that has the job now; return its last words."""
        return await asyncio.shield(asyncio.wrap_future(self._ended))

    def _run(self, index: int, ticket: bytes) -> None:
        try:
            self._ended.set_result(_run_host(index, ticket))
        except BaseException as error:  # noqa: BLE001  who waits is told
            self._ended.set_exception(error)
        time.sleep(_ANSWERED_S)
        _end_this()


def _run_host(index: int, ticket: bytes) -> str:
    join = [sys.executable, "-P", "-m", "monarch_nb.host.join", "--index", str(index)]
    host = subprocess.Popen(
        [*join, "--parent", str(os.getpid())],  # Ray ends this process without a word to it
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=with_us(os.environ),
    )
    assert host.stdin is not None
    assert host.stderr is not None
    with contextlib.suppress(BrokenPipeError), host.stdin as out:
        out.write(ticket)
    words = read_last(host.stderr)
    return f"it ended with code {host.wait()}\n{words}".strip()


class Presence:
    """Is there as long as the program that has made it: Ray ends it then."""


class Sweeper:
    """Has a placement group made, and removed when nobody is there for it. Ray starts it again,
    elsewhere, when its node is lost; then it finds the group by its name."""

    def __init__(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str) -> None:
        import ray

        self._name = name
        try:
            self._group = ray.util.get_placement_group(name)
        except ValueError:
            made = [dict(each) for each in bundles]
            self._group = ray.util.placement_group(
                made, strategy=strategy, name=name, lifetime=DETACHED
            )
        threading.Thread(target=self._sweep, daemon=True).start()

    def group(self) -> Any:
        """Return the placement group."""
        return self._group

    def _sweep(self) -> None:
        import ray

        empty = 0
        while True:
            time.sleep(_LOOK_S)
            with contextlib.suppress(Exception):  # Ray's head does not answer: later
                names = self._names()
                empty = 0 if self._is_wanted(names) else empty + 1
                if empty >= _LOOKS:
                    ray.util.remove_placement_group(self._group)
                    for each in names:  # that waited for it, and would for ever
                        ray.kill(ray.get_actor(each, namespace=NAMESPACE))
                    _end_this()

    def _names(self) -> list[str]:
        import ray

        known = ray.util.list_named_actors(all_namespaces=True)
        names = [each["name"] for each in known if each["namespace"] == NAMESPACE]
        return [each for each in names if each.startswith(named(self._name, ""))]

    def _is_wanted(self, names: Sequence[str]) -> bool:
        import ray

        state = ray.util.placement_group_table(self._group)["state"]
        if any(each.startswith(named(self._name, PROGRAM)) for each in names):
            return bool(state != "REMOVED")
        return bool(names) and state not in ("PENDING", "REMOVED")  # seats have names before places


def named(group: str, place: str) -> str:
    """Return the name of an actor of a group."""
    return f"{group}:{place}"


def _end_this() -> None:
    import ray

    ray.kill(ray.get_runtime_context().current_actor)
