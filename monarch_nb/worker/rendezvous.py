"""`torch.distributed` finds its peers without a listening socket and without a line of the user's.

`init_process_group()` with its default `env://` uses a `FileStore` in the mesh's private run dir.
PyTorch's own way would start a TCP store that listens on every interface without authentication. An
address that is not this host's is left to PyTorch.
"""

from __future__ import annotations

import datetime as dt
import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1", ""})
DEFAULT_TIMEOUT: Final = dt.timedelta(seconds=60)


class _Place:
    path = ""
    rank = 0
    size = 1
    generation = itertools.count()


def prepare(path: str, rank: int, size: int) -> None:
    """Remember where the peers meet, and make `env://` mean it."""
    _Place.path, _Place.rank, _Place.size = path, rank, size
    _Place.generation = itertools.count()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "torch" in sys.modules:
        _install()


def _install() -> None:
    # torch.distributed.rendezvous names a function too, and it hides the module
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    original = handlers["env"]

    def meet(url: str, timeout: dt.timedelta = DEFAULT_TIMEOUT, **rest: Any) -> Iterator[Any]:
        if os.environ.get("MASTER_ADDR", "") not in LOCAL_NAMES:
            return original(url, timeout=timeout, **rest)  # type: ignore[no-any-return]
        return _meet_in_file(timeout)

    handlers["env"] = meet


def _meet_in_file(timeout: dt.timedelta) -> Iterator[Any]:
    torch_distributed: Any = importlib.import_module("torch.distributed")
    rank = int(os.environ.get("RANK", _Place.rank))
    size = int(os.environ.get("WORLD_SIZE", _Place.size))
    store = torch_distributed.FileStore(_Place.path, size)
    store.set_timeout(timeout)
    yield torch_distributed.PrefixStore(f"group-{next(_Place.generation)}", store), rank, size
    raise RuntimeError(
        "a process group over the mesh's store cannot be re-made in place; init it again"
    )


def regroup(path: str, rank: int, size: int) -> None:
    """Some peers are new, or gone for good: leave the old group, meet at a new place."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    _Place.path, _Place.rank, _Place.size = path, rank, size
    _Place.generation = itertools.count()
