"""Scripts on a mesh, seen from the controller: what is to run, and the world it finds.

The ranks of all parts of a selection are one world; they count from 0 in the order of the mesh. A
script is sent as a cell is, and is one to whoever waits for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import PurePath

from monarch_nb.control.cells.run import CellRun, start
from monarch_nb.core.wire.frames import HOST_SHIFT
from monarch_nb.core.wire.messages.cells import RunCell, Script
from monarch_nb.meshes.proc_mesh import ProcMesh
from monarch_nb.net import wire


def script_of(parts: Sequence[ProcMesh], name: str, args: Sequence[str], *, module: bool) -> Script:
    """What is to run on these parts of a mesh: a file, or a `module`."""
    process_of = {
        rank: process
        for part in parts
        for rank, process in zip(part.ranks, part._processes(), strict=True)
    }
    ranks = sorted(process_of)
    hosts = [process_of[rank] >> HOST_SHIFT for rank in ranks]
    run, port = uuid.uuid4().hex, wire.free_port()
    return Script(name, list(args), module, ranks, hosts, run, port)


def run_script(part: ProcMesh, script: Script, *, tag: int, keep: bool = False) -> CellRun:
    """Start it on one of its parts. Does not block. Raises what `run_cell` raises."""
    what = PurePath(script.name).name
    return start(part, RunCell(script=script, what=what, keep=keep), tag)
