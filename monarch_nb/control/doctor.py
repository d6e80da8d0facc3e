"""`%mesh doctor`: what is wrong with this machine and the hosts of a mesh, and what to type.

Rule of the file: only what was seen is judged. A host that does not answer is a line too.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from monarch_nb.errors import MeshError
from monarch_nb.host.health import SHM, Health, look
from monarch_nb.meshes.proc_mesh import FunctionRunner, ProcMesh
from monarch_nb.process.futures.future import Future

ANSWER_S: Final = 10.0
MIN_FILES: Final = 4_096
MIN_SHM: Final = 64 << 20
FULL: Final = 0.9
_COMMANDS: Final = {"ssh": "ssh", "sbatch": "slurm", "kubectl": "k8s"}


class Finding(NamedTuple):
    """One line. `fix`: what to do about it; "": it is well."""

    where: str
    what: str
    fix: str = ""


def examine(mesh: ProcMesh | None) -> Iterator[Finding]:
    """Look at this machine and each host of the mesh. Waits for ranks, `ANSWER_S` at most."""
    here = look()
    yield from _of_host("this machine", here)
    yield from _commands()
    for where, health in ({} if mesh is None else _hosts(mesh)).items():
        if isinstance(health, str):
            yield Finding(where, health, "%mesh status shows why; %mesh interrupt stops its cells")
        else:
            yield from _of_host(where, health)
            yield from _versions(where, here, health)


def _hosts(mesh: ProcMesh) -> Mapping[str, Health | str]:
    # by what they are called; the first living rank of each is asked, all at once
    state = mesh._state
    first: dict[int, int] = {}
    for rank, agent in enumerate(state.agents):
        if rank not in state.lost:
            first.setdefault(agent, rank)
    points = {
        agent: state.view().slice(**state.shape.coordinates(rank)) for agent, rank in first.items()
    }
    actors = {agent: point.spawn("doctor", FunctionRunner) for agent, point in points.items()}
    try:
        asked = {agent: each.run.call_one(look, (), {}) for agent, each in actors.items()}
        deadline = time.monotonic() + ANSWER_S
        answers = {agent: _answer(each, deadline) for agent, each in asked.items()}
    finally:
        for each in actors.values():
            each.stop("the doctor has gone").add_done_callback(lambda _: None)  # not waited for
    found: dict[str, Health | str] = {}
    for number, agent in enumerate(dict.fromkeys(state.agents)):
        answer = answers.get(agent, "all its ranks are lost")
        name = f" {answer.name}" if isinstance(answer, Health) else ""
        found[f"host {number}{name}"] = answer
    return found


def _answer(asked: Future[Any], deadline: float) -> Health | str:
    try:
        answer: Health = asked.get(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except MeshError as error:
        return f"no answer: {error}"
    return answer


def _of_host(where: str, seen: Health) -> Iterator[Finding]:
    if seen.name_leads_to.startswith("127."):
        yield Finding(
            where,
            f"its name {seen.name} leads to {seen.name_leads_to}",
            "programs that go by it are reached from nowhere else: name its address in /etc/hosts",
        )
    else:
        known = f"leads to {seen.name_leads_to}" if seen.name_leads_to else "has no address"
        yield Finding(where, f"its name {seen.name} {known}")
    if seen.interface:
        yield Finding(where, f"other hosts reach it by {seen.interface}")
    yield _of_shm(where, seen)
    files = f"a process may have {seen.files} descriptors"
    yield Finding(where, files, "ulimit -n 65536" if seen.files < MIN_FILES else "")
    yield Finding(where, f"{seen.gpus} NVIDIA GPUs")
    told = ", ".join(f"{name} {version}" for name, version in seen.versions.items())
    yield Finding(where, told)


def _of_shm(where: str, seen: Health) -> Finding:
    size, free = seen.shm_bytes, seen.shm_free_bytes
    what = f"{SHM} has {size >> 20} MB, {free >> 20} MB free"
    if size < MIN_SHM:
        return Finding(where, what, "in a container: --shm-size=8g, or mount an emptyDir of Memory")
    if free < (1 - FULL) * size:
        return Finding(where, what, f"ls -l {SHM} shows whose it is")
    return Finding(where, what)


def _versions(where: str, here: Health, there: Health) -> Iterator[Finding]:
    for name in here.versions.keys() & there.versions.keys():
        ours, theirs = here.versions[name], there.versions[name]
        if ours != theirs:
            what = f"{name} {theirs} is installed, {ours} on this machine"
            yield Finding(where, what, "install the same version on both")


def _commands() -> Iterator[Finding]:
    for command, engine in _COMMANDS.items():
        path = shutil.which(command)
        what = f"{command} is {path}" if path else f"no {command}, so no --on {engine} from here"
        yield Finding("this machine", what)
