"""nbdistributed: it has cells and nothing else to measure.

`%dist_shutdown` is not called: it runs `pkill -f "python.*worker"`, which ends processes of
strangers. For the same reason `pkill` is out of its reach here. Whoever runs this module ends what
is left, by process id.
"""

import os
import tempfile
from pathlib import Path

from benchmarks import cells, outputs, system

NOTEBOOK = cells.Notebook(
    kernel="python3",
    setup=("%load_ext nbdistributed", "%dist_init -n 4"),
    cell="1+1",
    shows="Rank 0.*2.*Rank 1.*2.*Rank 2.*2.*Rank 3.*2",
)


def without_pkill() -> None:
    folder = Path(tempfile.mkdtemp())
    for name in ("pkill", "killall"):
        (folder / name).symlink_to("/bin/true")
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


if __name__ == "__main__":
    without_pkill()
    system.main(cells.measures(NOTEBOOK) | outputs.measures(NOTEBOOK, "%%distributed"))
