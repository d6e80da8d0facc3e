"""Run a program that was written for Monarch: `python -m monarch_nb.compat program.py ...`.

Or a module: `python -m monarch_nb.compat -m module ...`. Its `monarch` is this package; so is that
of the Python processes that it starts.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

_USAGE: Final = "usage: python -m monarch_nb.compat (PROGRAM.py | -m MODULE) [ARGUMENT ...]"


def main(words: list[str]) -> None:
    if words in ([], ["-m"]):
        sys.exit(_USAGE)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    program = Path(words[0])
    if not program.exists():
        sys.exit(f"there is no program {words[0]!r}\n{_USAGE}")
    sys.argv = words
    if not sys.flags.safe_path:
        sys.path[0] = str(program.resolve().parent)  # as `python program.py` has it
    runpy.run_path(words[0], run_name="__main__")


main(sys.argv[1:])
