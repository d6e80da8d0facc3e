"""A script on a rank: as if `torchrun` had started it, in a process that lives on.

Rule of the file: the script gets a `__main__` of its own, the world and the environment of its run,
no process groups and none of the modules beside it that cells have loaded; when it has ended, all
of this is as it was, and nothing of ours keeps its objects alive. The process itself is the
rank's: what a script changes in libraries stays changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import linecache
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from monarch_nb.core.wire.messages.cells import Script
from monarch_nb.process.current import end_fork
from monarch_nb.services.spmd import LOOPBACK, TorchrunPlace
from monarch_nb.worker.groups.meeting.rendezvous import LOCAL_NAMES
from monarch_nb.worker.groups.process_groups import Place, ProcessGroups
from monarch_nb.worker.scripts import loader
from monarch_nb.worker.scripts.process_state import AtExit, CellGroups, ProcessState, ScriptModules

_LAST: Final = ("last_type", "last_value", "last_traceback")  # where pdb looks
ROLE: Final = "default"  # torchrun's


@dataclasses.dataclass(frozen=True)
class ScriptWorld:
    """The ranks that run a script, which count from 0 there, as `torchrun` would start them.

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
        """Read it from a message of the controller, for the rank `member` of the mesh."""
        members = script.ranks
        return ScriptWorld(members, script.hosts, members.index(member), script.run, script.port)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    def environment(self) -> dict[str, str]:
        """Return what a script may read. The address of a master that the user has chosen stays."""
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


class ScriptRun:
    """One run of a script: `with ScriptRun(script, rank, groups) as run: run.run()`. Main thread.

    `script` is what came from the controller, `member` the rank of the mesh that this process is.
    """

    def __init__(self, script: Script, member: int, groups: ProcessGroups) -> None:
        self._name = script.name
        self._args = script.args
        self._is_module = script.module
        self._world = ScriptWorld.of(script, member)
        self._groups = groups
        self._pid = os.getpid()
        self._has_failed = False
        self._problem: Exception | None = None
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001  no room for a folder, a name that is none
            self._problem = error.with_traceback(None)
        return self

    def _prepare(self) -> None:
        place = _place(self._groups.world, self._world)
        self._undo.callback(self._groups.keys(place).leave, place.rank, place.size)
        folder = loader.folder_of(self._name, is_module=self._is_module)
        state = ProcessState()
        # from here on there is something to put back, so nothing may fail
        cell_groups = CellGroups(self._groups)
        self._undo.callback(self._release, cell_groups)
        self._undo.enter_context(self._groups.meeting_at(place))
        self._undo.callback(state.put_back)
        self._undo.callback(lambda: cell_groups.put_back(failed=self._has_failed))
        modules = ScriptModules(folder)
        self._undo.callback(modules.put_back)
        self._exits = AtExit(modules.has)
        self._undo.callback(self._exits.close)
        self._threads = set(threading.enumerate())
        sys.stdin = self._undo.enter_context(Path(os.devnull).open())  # noqa: SIM115  `exit()` closes it
        os.environ.update(self._world.environment())
        sys.path.insert(0, str(folder))

    def run(self) -> BaseException | None:
        """Run it to its end, what it has left to do at exit included. What it failed with."""
        if self._problem is not None:
            return self._problem
        error = _raised_by(self._execute)
        late = _raised_by(self._finish)
        if os.getpid() != self._pid:  # a fork that the script has made and not ended
            end_fork(error or late)
        said = self._outcome(error) or late
        self._has_failed = said is not None
        return said

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _execute(self) -> None:
        importlib.invalidate_caches()
        linecache.checkcache()
        sys.argv = ["-m", *self._args]
        where = f" on {platform.node()}" if len(set(self._world.hosts)) > 1 else ""
        program = loader.load(self._name, is_module=self._is_module, where=where)
        sys.argv[0] = program.argv0
        sys.modules["__main__"] = program.main
        exec(program.code, vars(program.main))  # noqa: S102  that is what it is for

    def _outcome(self, error: BaseException | None) -> BaseException | None:
        if isinstance(error, loader.NoProgram):
            return error.with_traceback(None)
        if not isinstance(error, SystemExit):
            return error
        if error.code is None or (isinstance(error.code, int) and error.code == 0):
            return None
        return SystemExit(f"{self._name} called sys.exit({error.code!r})")

    def _finish(self) -> None:
        while left := [thread for thread in _own_threads() if thread not in self._threads]:
            left[0].join()
        self._exits.run()

    def _release(self, groups: CellGroups) -> None:
        # Peers that wait in a collective are told of the end when the last of its objects goes
        if self._has_failed:
            for name in _LAST:
                vars(sys).pop(name, None)
        gc.collect()
        groups.release()


def _raised_by(part: Callable[[], None]) -> BaseException | None:
    # The script's code runs: it may be any error, an interrupt too
    try:
        part()
    except BaseException as error:  # noqa: BLE001
        return error
    return None


def _place(home: Place, world: ScriptWorld) -> Place:
    return Place(f"{home.name}-{world.run}", world.rank, world.size, can_be_left=True)


def _own_threads() -> list[threading.Thread]:
    # Threads that Python waits for at its end; those of executors it would tell to end
    pools = (("thread", "_threads_queues"), ("process", "_threads_wakeups"))
    told = [
        getattr(sys.modules.get(f"concurrent.futures.{module}"), name, ()) for module, name in pools
    ]
    return [
        thread
        for thread in threading.enumerate()
        if not thread.daemon
        and thread is not threading.main_thread()
        and not any(thread in known for known in told)
    ]
