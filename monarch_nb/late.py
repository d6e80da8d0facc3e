"""What is reached from below by its name alone: what stands above, and what is loaded at first use.

Rule: nothing else imports a module of the package by a name in a string. Names are without the
package, as in `monarch_nb/__init__.py`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Final

PACKAGE: Final = "monarch_nb"

CLIENT: Final = "control.client"
"""Starts when a mesh is first used in a process that is no rank."""
RANK: Final = "host.rank"
"""What a started rank executes; never imported here."""
METRICS_TABLE: Final = "control.metrics_table"
"""`ProcMesh.metrics`; the controller alone has what ranks have logged."""
TENSORS: Final = "tensor.meshes.active"
"""`ProcMesh.activate`; it imports torch, so whether it is loaded is asked first."""
REMOTE_METHODS: Final = "tensor.remote_functions.remoting"
"""Endpoints that are called with tensors of a mesh."""
CONSTRUCTORS: Final = "tensor.remote_functions.constructors"
"""Actors that are spawned with tensors of a mesh."""
WORKSPACE_SYNC: Final = "services.workspace.sync"
"""`sync_workspace`; no process needs it to start."""
SPMD: Final = "spmd"
"""Scripts for torchrun on ranks; whether the program uses them is asked, and no more."""
FAULTS: Final = "testing.serving"
"""What lets a test harm a process that was started for that; no other process loads it."""
COMPAT: Final = "compat"
"""`import monarch`; it imports the package, which loads it when `MONARCH_NB_COMPAT` is set."""


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


def loaded(name: str) -> ModuleType | None:
    return sys.modules.get(f"{PACKAGE}.{name}")
