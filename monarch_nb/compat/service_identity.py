"""Names of worker processes that survive restarts: those of Monarch's `monarch.job`.

Hosts have no such names here; programs that make them and hand them on run all the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

from monarch_nb import ProcId, Uid

SERVICE_PROC_IDS_ENV: Final = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV: Final = "MONARCH_SERVICE_PROC_RANK"


def new_service_proc_id() -> ProcId:
    """Make the name of one worker."""
    return ProcId(Uid.instance("service"))


def serialize_service_proc_ids(proc_ids: Sequence[ProcId]) -> str:
    """Return names as one text, for an environment variable."""
    return json.dumps([str(each) for each in proc_ids])


def deserialize_service_proc_ids(serialized: str) -> list[ProcId]:
    """Read what `serialize_service_proc_ids` gave. Raises `ValueError` for what is no such text."""
    return [ProcId.from_string(each) for each in json.loads(serialized)]


def service_proc_addr(address: str, proc_id: ProcId | None) -> str:
    """Put a name in front of an address; None: the address alone."""
    return address if proc_id is None else f"{proc_id}@{address}"


def service_proc_addrs(addresses: Sequence[str], proc_ids: Sequence[ProcId] | None) -> list[str]:
    """Do so for each. Raises `ValueError` unless there are as many names as addresses."""
    if proc_ids is None:
        return list(addresses)
    if len(addresses) != len(proc_ids):
        raise ValueError(f"{len(addresses)} addresses, but {len(proc_ids)} names of workers")
    return [service_proc_addr(*each) for each in zip(addresses, proc_ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> ProcId | None:
    """Return this worker's name out of those in the environment; None where none are."""
    serialized, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if serialized is None or rank is None:
        return None
    return deserialize_service_proc_ids(serialized)[int(rank)]
