"""Records of kept meshes, as kernels write them."""

import os
from collections.abc import Mapping

from monarch_nb.control.keeping.kept_record import KeptMesh, KeptRecord
from monarch_nb.host.guard import started_at


def kept(
    meshes: Mapping[str, dict[str, int]], *, driven: bool, for_s: float = 3600.0
) -> KeptRecord:
    """The record of a kernel that has gone, or of another process, which lives."""
    pid = os.getppid()  # a process that lives, and is another one
    return KeptRecord(
        host="here",
        run_dir="/nowhere",
        controller=1,
        controller_pid=pid,
        controller_started=started_at(pid) if driven else 0,
        agent=2,
        agent_pid=pid,
        agent_started=0,
        key="",
        for_s=for_s,
        config={},
        notebook="",
        meshes=[KeptMesh(name, sizes) for name, sizes in meshes.items()],
    )
