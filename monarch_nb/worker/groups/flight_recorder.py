"""The verb `collectives`: what PyTorch's flight recorder has noted of this rank's collectives.

The recorder is on by default (`TORCH_FR_BUFFER_SIZE`, 2000 entries) and knows gloo, but for send
and recv. Reading all of it takes some 60 ms, so it is not done by the inbox thread. Groups that
are gone may have had the same names: what is older than the group is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from monarch_nb.core.hangs.collectives import Entry, tensors_text
from monarch_nb.core.wire.messages.status import Recorded
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.timeouts import GroupTimeouts

LAST: Final = 64  # collectives that are told
NO_GROUP: Final = "no process group"
OFF: Final = "off"
_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


Written = Mapping[str, Any]
"""An entry as PyTorch writes it."""


def report(timeouts: GroupTimeouts) -> Recorded:
    """Tell what is known: `why` is empty where the recorder knows something; `members`: global
    ranks of each group."""
    if c10d.loaded() is None or not c10d.world().pg_map:  # the default group may not be among them
        return Recorded([], {}, NO_GROUP)
    entries = [row(each) for each in recorded(timeouts)]
    return Recorded(entries[-LAST:], _members(), OFF if _is_off() else "")


def row(entry: Written) -> Entry:
    op = entry["profiling_name"].rpartition(":")[2]
    tensors = tensors_text(entry["input_dtypes"], entry["input_sizes"])
    seq = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    is_done = bool(entry["retired"]) or entry["state"] == "completed"
    return Entry(str(entry["process_group"][0]), seq, op, tensors, is_done)


def _is_off() -> bool:
    sizes = (os.environ[name] for name in _SIZES if name in os.environ)
    return next(sizes, "") == "0"


def recorded(timeouts: GroupTimeouts) -> list[Written]:
    """Return what the recorder has of groups as they are now, the oldest first."""
    bindings = c10d.load("torch._C._distributed_c10d")
    found: list[Written] = json.loads(bindings._dump_fr_trace_json()).get("entries", [])
    return [each for each in found if _is_of_living(each, timeouts)]


def _is_of_living(entry: Written, timeouts: GroupTimeouts) -> bool:
    return bool(entry["time_created_ns"] >= timeouts.since_ns(entry["process_group"][0]))


def _members() -> dict[str, list[int]]:
    world = c10d.world()
    return {
        name: sorted(world.pg_group_ranks.get(group, ())) for group, name in world.pg_names.items()
    }
