"""From a `spawn` message to the boot records of its ranks: what all get, and what each gets.

It checks what the records need and leaves the rest to the rank; it forks nothing.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any, Final

from monarch_nb.host.guard import PROC_VARIABLE
from monarch_nb.host.launch import AgentBoot

Record = dict[str, Any]
_COMMON: Final = (
    "owner", "mesh", "name", "labels", "sizes", "host_size", "cwd", "path", "store", "config",
    "ready_port",
)  # fmt: skip


def fork_request(
    body: Record, buffers: Sequence[bytes], boot: AgentBoot, places: Sequence[tuple[str, int]]
) -> Record:
    """The zygote's request. `places`: board path and slot of each rank. Raises `ValueError`."""
    procs = body["procs"]
    count = len(procs)
    sizes = [count] if body.get("sizes") is None else body["sizes"]
    common = {
        **{name: body.get(name) for name in _COMMON},
        "sizes": sizes,
        "world_size": math.prod(sizes),
        "host_size": body.get("host_size") or count,
        "agent": boot.agent,
        "controller": boot.controller,
        "run_dir": boot.run_dir,
        "config": body.get("config") or boot.config,
        "bootstrap": base64.b64encode(buffers[0]).decode() if buffers else None,
    }
    columns = {
        name: _column(body, name, count, default)
        for name, default in (("rank_env", {}), ("devices", None), ("bind", None))
    }
    ranks = _column(body, "ranks", count, None)
    return {
        "common": common,
        "ranks": [
            {
                "proc": proc,
                "rank": index if ranks[index] is None else ranks[index],
                "local_rank": index,
                "device": columns["devices"][index],
                "bind": columns["bind"][index],
                "board": list(places[index]),
                "env": {
                    **(body.get("env") or {}),
                    **(columns["rank_env"][index] or {}),
                    PROC_VARIABLE: str(proc),
                },
            }
            for index, proc in enumerate(procs)
        ],
    }


def check_procs(procs: Any) -> list[int]:
    """The ids of a message as such. Raises `ValueError`."""
    if not isinstance(procs, list) or not all(type(proc) is int for proc in procs):
        raise ValueError(f"procs must be a list of process ids, not {procs!r:.80}")
    if len(set(procs)) != len(procs):
        raise ValueError("a process id is named twice")
    return procs


def _column(body: Record, name: str, count: int, default: Any) -> list[Any]:
    values = body.get(name)
    if values is None:
        return [default] * count
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"{name} must be a list with one entry for each of {count} ranks")
    return values
