"""A rank writes where its threads are when a signal asks for it; the agent reads it.

Nothing of Python runs for that: it works while C code holds the interpreter.
"""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

from monarch_nb.core.hangs.stacks import file_name


def install(run_dir: Path, process: int) -> None:
    """Write stacks on the signal. The file gets its name last: who finds it may send that."""
    path = run_dir / file_name(process)
    new = path.with_suffix(".new")
    file = new.open("ab", buffering=0)
    faulthandler.register(signal.SIGRTMIN, file, all_threads=True)
    new.rename(path)
