"""From a `spawn` message to the boot records of its ranks: what all get, and what each gets.

It checks what the records need, and that commands are there, and leaves the rest to the rank; it
forks nothing.
"""

from __future__ import annotations

import base64
import math
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from monarch_nb.core.wire.messages.agents import Spawn
from monarch_nb.data import gpus
from monarch_nb.host.guard import PROC_VARIABLE
from monarch_nb.host.interfaces import LOOPBACK
from monarch_nb.host.launch import AgentBoot, Record

_COMMON: Final = (
    "owner", "mesh", "name", "labels", "sizes", "host_size", "cwd", "path", "store", "config",
    "ready_port", "python", "libraries", "spans_hosts",
)  # fmt: skip


def fork_request(
    spawn: Spawn, buffers: Sequence[bytes], boot: AgentBoot, places: Sequence[tuple[str, int]]
) -> Record:
    """Make the zygote's request. `places`: board path and slot of each. Raises `ValueError`."""
    procs, body = spawn.procs, spawn._asdict()
    count = len(procs)
    sizes = [count] if spawn.sizes is None else spawn.sizes
    common = {
        **{name: body[name] for name in _COMMON},
        "sizes": sizes,
        "world_size": math.prod(sizes),
        "host_size": spawn.host_size or count,
        "agent": boot.agent,
        "controller": boot.controller,
        "run_dir": boot.run_dir,
        "config": spawn.config or boot.config,
        "interface": boot.interface if spawn.spans_hosts else LOOPBACK,
        "network": boot.interface,  # for when the mesh gets more hosts
        "shares_gpus": _shares_gpus(spawn, count),
        "bootstrap": base64.b64encode(buffers[0]).decode() if buffers else None,
    }
    names = ("ranks", "rank_env", "slots", "own_gpu", "bind", "commands")
    columns = {name: _column(body, name, count) for name in names}
    ranks = columns["ranks"]
    given = [{**(spawn.env or {}), **(each or {})} for each in columns["rank_env"]]
    slots = [index if slot is None else slot for index, slot in enumerate(columns["slots"])]
    envs, devices = [], []
    for env, slot, own in zip(given, slots, columns["own_gpu"], strict=True):
        device, changes = _gpu(env, slot, own=bool(own))
        envs.append({**env, **changes})
        devices.append(device)
    return {
        "common": common,
        "ranks": [
            {
                "proc": proc,
                "rank": index if ranks[index] is None else ranks[index],
                "local_rank": index,
                "device": devices[index],
                "bind": columns["bind"][index],
                "board": list(places[index]),
                "env": {**envs[index], PROC_VARIABLE: str(proc)},
                "command": _command(columns["commands"][index], envs[index], spawn.cwd),
            }
            for index, proc in enumerate(procs)
        ],
    }


def commands_of(request: Record) -> dict[int, str]:
    """Return the command of each rank that is started, as a person would type it."""
    return {
        rank["proc"]: shlex.join([rank["command"]["asked"], *rank["command"]["argv"][1:]])
        for rank in request["ranks"]
        if rank["command"]
    }


def _gpu(
    env: Mapping[str, str | None], slot: int, *, own: bool
) -> tuple[str, Mapping[str, str | None]]:
    # the device that is meant for a rank, and what that changes of its environment
    seen = gpus.gpus_seen(env.get(gpus.VISIBLE), gpus.visible_gpus())
    if not own:
        return gpus.device_of(slot, seen), {}
    if (mine := gpus.gpu_of(slot, seen)) is None:
        raise ValueError("this host has no GPU that a rank could use. Type: --device cpu")
    return gpus.device_of(0, [mine]), {gpus.VISIBLE: mine}


def _shares_gpus(spawn: Spawn, count: int) -> bool:
    if spawn.shares_gpus is not None:
        return spawn.shares_gpus
    return 0 < len(gpus.visible_gpus()) < (spawn.host_size or count)


def _command(wanted: object, env: Mapping[str, str | None], cwd: str | None) -> Record | None:
    # the program is looked for as an exec in the rank would
    if wanted is None:
        return None
    if not isinstance(wanted, list) or not all(isinstance(word, str) for word in wanted):
        raise ValueError(f"a command is a list of words, not {wanted!r:.80}")
    if len(wanted) < 2:
        raise ValueError(f"a command is a program and its argv, not {wanted}")
    asked, *argv = wanted
    paths = env.get("PATH", os.environ.get("PATH")) or os.defpath
    name = str(Path(cwd or "", asked)) if os.sep in asked else asked
    if (program := shutil.which(name, path=paths)) is None:
        why = "may not be executed" if Path(name).exists() else "is not there"
        raise ValueError(f"ranks cannot be started by {asked!r}: on this host it {why}")
    return {"asked": asked, "program": str(Path(cwd or "", program)), "argv": argv}


def check_procs(procs: list[int]) -> list[int]:
    """Raise `ValueError` for a process id that is none, or named twice."""
    if min(procs, default=1) < 1:
        raise ValueError("a process id is a number above 0")
    if len(set(procs)) != len(procs):
        raise ValueError("a process id is named twice")
    return procs


def _column(body: Record, name: str, count: int) -> list[Any]:
    values: list[Any] | None = body[name]
    if values is None:
        return [None] * count
    if len(values) != count:
        raise ValueError(f"{name} must be a list with one entry for each of {count} ranks")
    return values
