"""What this host is like, as far as it makes meshes fail: for `%mesh doctor`.

Rule of the file: facts only, each seen here and now; nothing is imported and nothing is started for
them.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from pathlib import Path
from typing import Final, NamedTuple

from monarch_nb.host.versions import versions

SHM: Final = Path("/dev/shm")  # noqa: S108  of the system, it is only looked at
_NVIDIA: Final = Path("/proc/driver/nvidia/gpus")


class Health(NamedTuple):
    """One host, seen from a process there."""

    name: str
    versions: dict[str, str]
    """Also of CUDA, where torch is loaded and has it."""
    name_leads_to: str
    """The address of the host's own name; "": none."""
    interface: str
    """By which other hosts reach this one; "": not known."""
    shm_bytes: int
    shm_free_bytes: int
    files: int
    """How many descriptors a process may have."""
    gpus: int


def look() -> Health:
    """Look at this host."""
    name = socket.gethostname()
    shm = os.statvfs(SHM) if SHM.is_dir() else None
    return Health(
        name,
        {**versions(), **_cuda()},
        _address_of(name),
        os.environ.get("GLOO_SOCKET_IFNAME", ""),
        0 if shm is None else shm.f_blocks * shm.f_frsize,
        0 if shm is None else shm.f_bavail * shm.f_frsize,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0,
    )


def _cuda() -> dict[str, str]:
    found = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {"CUDA": str(found)} if found else {}


def _address_of(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return ""
