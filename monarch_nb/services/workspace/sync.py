"""`sync_workspace`: this host's folders copied to other hosts, over the links that are there.

Rules: an actor on each host receives (`receiver.py`), called like any other, a few chunks at a
time, so that control messages are never behind more than those. A host that fails does not keep
others from being synced; in the end all that failed are named. Modules are loaded again by the
ranks (`worker/reloading.py`).
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from monarch_nb.actors.endpoints import returns_future
from monarch_nb.core.shape.extent import Extent, Point
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.manifest import FILE, Entry
from monarch_nb.core.wire.messages.actors import Reloaded, WorkspaceSynced
from monarch_nb.errors import ActorError, MeshError
from monarch_nb.meshes.hosts import Hosts
from monarch_nb.meshes.synced import HostSync, SyncedFolders, SyncReport
from monarch_nb.meshes.workspace import CondaEnvironment, Workspace
from monarch_nb.process import current
from monarch_nb.process.futures.ask_all import Question
from monarch_nb.process.futures.future import Future, make
from monarch_nb.services.workspace.receiver import WorkspaceReceiver
from monarch_nb.services.workspace.trees import Pieces, digest, scan

if TYPE_CHECKING:
    from monarch_nb.meshes.proc_mesh import ProcMesh
    from monarch_nb.process.process import Proc

WINDOW: Final = 4  # chunks on their way to one host
PAGE: Final = 2_000  # entries of a manifest in one message
PACKAGES: Final = "conda/site-packages"


@dataclass(frozen=True)
class _Source:
    local: Path
    place: str
    entries: list[Entry]
    is_packages: bool = False


async def sync(
    agents: Sequence[int],
    extent: Extent,
    workspace: Workspace | Path | str,
    *,
    conda: bool,
    auto_reload: bool,
    spawn: Callable[[int], ProcMesh],
) -> SyncReport:
    """Do `HostMesh.sync_workspace`; `spawn(agent)` starts a process on a host, wherever it
    starts."""
    hosts = current.part(Hosts)
    _check_remote(hosts.proc, agents)
    if not isinstance(workspace, Workspace):
        workspace = Workspace([workspace])
    sources = await asyncio.to_thread(_sources, workspace, conda)
    senders = [
        _Sender(hosts.proc, agent, Point(i, extent), spawn) for i, agent in enumerate(agents)
    ]
    errors = await asyncio.gather(*(each.run(sources) for each in senders), return_exceptions=True)
    done = [each for each, error in zip(senders, errors, strict=True) if error is None]

    def copy(agent: int) -> Future[SyncReport]:
        to_one = Extent(["hosts"], [1])
        again = returns_future(sync)
        return again([agent], to_one, workspace, conda=conda, auto_reload=False, spawn=spawn)

    places = tuple(workspace.dirs), conda
    for each in done:
        hosts.synced[each.agent] = each.synced(hosts.synced.get(each.agent))
        hosts.copies.setdefault(each.agent, {})[places] = copy  # a heal may put ranks elsewhere
    reloaded = await _tell_ranks(hosts, done, auto_reload)
    failed = [error for error in errors if error is not None]
    if failed:
        raise _in_one(failed)
    return SyncReport(tuple(each.report() for each in done), reloaded)


def _check_remote(proc: Proc, agents: Sequence[int]) -> None:
    if any(agent >> HOST_SHIFT == proc.host for agent in agents):
        raise NotImplementedError(
            "processes of one host share its files, so there is nothing to sync on this host; "
            "sync_workspace is for hosts of attach_to_workers(workers=[...])"
        )


def _sources(workspace: Workspace, conda: bool) -> list[_Source]:
    found = []
    for local, place in workspace.dirs.items():
        top = local.resolve()
        if not top.is_dir():
            raise ValueError(f"{local} of the workspace is no folder of this host")
        found.append(_Source(top, place, scan(top, workspace.exclude)))
    if conda:
        env = workspace.env
        if not isinstance(env, CondaEnvironment):
            raise ValueError(
                "conda=True needs a conda environment: Workspace(dirs, env=CondaEnvironment())"
            )
        top = env.packages.resolve()
        found.append(_Source(top, PACKAGES, scan(top), is_packages=True))
    return found


def _in_one(failed: Sequence[BaseException]) -> BaseException:
    for error in failed:
        if not isinstance(error, MeshError):
            return error
    error = MeshError("sync_workspace failed; " + "; ".join(str(each) for each in failed))
    error.__cause__ = failed[0].__cause__
    return error


class _Sender:
    def __init__(
        self, proc: Proc, agent: int, point: Point, spawn: Callable[[int], ProcMesh]
    ) -> None:
        self.agent = agent
        self._proc = proc
        self._spawn = spawn
        place = ", ".join(f"{label}={index}" for label, index in point.items())
        self._name = f"the host {place}".strip()
        self._host = ""
        self._root = ""
        self._files = 0
        self._bytes = 0
        self._sources: Sequence[_Source] = ()
        self.written: list[str] = []
        self.deleted: list[str] = []

    async def run(self, sources: Sequence[_Source]) -> None:
        self._sources = sources
        try:
            async with self._process() as procs:
                receiver: Any = procs.spawn("workspace", WorkspaceReceiver)
                receiver._state.make_internal()
                self._host, self._root = await receiver.where.call_one()
                self._name += f" ({self._host})"
                for source in sources:
                    await self.send(source, receiver)
        except ActorError as error:
            raise MeshError(f"{self._name}: {error.exception}") from error
        except OSError as error:
            raise MeshError(f"{self._name}: cannot read {error}") from error
        except MeshError as error:
            raise MeshError(f"{self._name}: {error}") from error

    def _process(self) -> ProcMesh:
        gone = self._proc.dead.get(self.agent)
        if gone is not None:
            raise MeshError(f"it is lost ({gone.plainly()}); offer and attach it again")
        return self._spawn(self.agent)

    async def send(self, source: _Source, receiver: Any) -> None:
        pieces = Pieces(source.local, await self._differing(source, receiver))
        batches = iter(pieces)
        window: collections.deque[Future[None]] = collections.deque()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            window.append(receiver.write.call_one(source.place, batch))
            if len(window) >= WINDOW:
                await window.popleft()
        for each in window:
            await each
        changed = await receiver.commit.call_one(source.place, pieces.amended, pieces.vanished)
        self._files += pieces.files
        self._bytes += pieces.bytes
        self.written += changed["written"]
        self.deleted += changed["deleted"]

    async def _differing(self, source: _Source, receiver: Any) -> list[Entry]:
        differs: dict[str, bytes] = {}
        for at in range(0, max(1, len(source.entries)), PAGE):
            page = source.entries[at : at + PAGE]
            differs |= await receiver.compare.call_one(source.place, page)
        return await asyncio.to_thread(_unlike, source, differs)

    def synced(self, known: SyncedFolders | None) -> SyncedFolders:
        found = SyncedFolders(self._root)
        for source in self._sources:
            remote = str(Path(self._root, source.place))
            if source.is_packages:
                found.packages = remote
            else:
                found.pairs[str(source.local)] = remote
        if known is not None:
            found.pairs = {
                **found.pairs,
                **{k: v for k, v in known.pairs.items() if k not in found.pairs},
            }
            found.packages = found.packages or known.packages
        return found

    def report(self) -> HostSync:
        return HostSync(self._host, self._root, self._files, self._bytes, len(self.deleted))


def _unlike(source: _Source, differs: dict[str, bytes]) -> list[Entry]:
    # Files of the same size but another time are sent only if their bytes differ
    found = []
    for entry in source.entries:
        if entry.kind == FILE and (there := differs.get(entry.path)) is not None:
            try:
                same = bool(there) and digest(source.local / entry.path) == there
            except FileNotFoundError:
                same = False  # `Pieces` will see that it has vanished
            if not same:
                found.append(entry)
    return found


async def _tell_ranks(
    hosts: Hosts, senders: Sequence[_Sender], auto_reload: bool
) -> tuple[str, ...]:
    by_agent = {each.agent: each for each in senders}
    who: dict[int, str] = {}
    told: dict[int, WorkspaceSynced] = {}
    for state in list(hosts.supervision.states.values()):
        if state.kind != "proc" or state.ended is not None:
            continue
        agents = getattr(state, "agents", ())
        for rank, (process, agent) in enumerate(zip(state.processes, agents, strict=False)):
            if agent in by_agent and process not in hosts.proc.dead:
                synced, sender = hosts.synced[agent], by_agent[agent]
                who[process] = f"rank {rank} of {state.name!r}"
                told[process] = WorkspaceSynced(
                    list(synced.pairs.items()),
                    synced.packages,
                    synced.root,
                    [*sender.written, *sender.deleted],
                    auto_reload,
                )
    heard: Future[None] = make(Future)
    question = Question(hosts.proc, told, lambda: heard._set_result(None))
    await heard
    answers = {
        process: answer  # of a rank that died meanwhile there is none: no failure of the sync
        for process, answer in question.answers.items()
        if isinstance(answer, Reloaded)
    }
    failed = [
        f"{who[process]}: {name}: {why}"
        for process, answer in answers.items()
        for name, why in answer.failed
    ]
    if failed:
        raise MeshError(
            "the files are synced, but not all modules loaded again; " + "; ".join(failed)
        )
    return tuple(sorted({name for answer in answers.values() for name in answer.reloaded}))
