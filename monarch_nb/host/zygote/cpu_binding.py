"""On which processors and in which memory this process runs, as numactl would arrange it."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_NODES: Final = Path("/sys/devices/system/node")
_MPOL_BIND: Final = 2
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}  # libc has no function for it
_MAX_NODES: Final = 64


def bind(wanted: Mapping[str, list[int]]) -> None:
    """Bind this process. Raises `ValueError` for processors or nodes that are not there."""
    processors = {*wanted.get("cpus", ()), *_of_nodes(wanted.get("nodes", ()))}
    if processors:
        try:
            os.sched_setaffinity(0, processors)
        except OSError as error:
            raise ValueError(
                f"proc_bind: none of the processors {sorted(processors)} may be used here"
            ) from error
    if memory := wanted.get("memory"):
        _bind_memory(memory)


def _of_nodes(nodes: Sequence[int]) -> set[int]:
    # a machine without nodes is node 0
    if not nodes:
        return set()
    allowed = os.sched_getaffinity(0)
    if not _NODES.exists() and set(nodes) == {0}:
        return allowed
    return {cpu for cpu in allowed if any((_NODES / f"node{n}/cpu{cpu}").exists() for n in nodes)}


def _bind_memory(nodes: list[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or max(nodes) >= _MAX_NODES:
        raise ValueError(f"proc_bind: membind={nodes} is not possible on this machine")
    mask = ctypes.c_ulong(sum(1 << node for node in set(nodes)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), _MAX_NODES + 1) and _NODES.exists():
        raise ValueError(f"proc_bind: membind={nodes}: {os.strerror(ctypes.get_errno())}")
