"""Which libraries ranks shall find loaded: those that take long to import, where they will be used.

A host loads a library once, and each rank that it forks afterwards has it for nothing. A program
that does without does not wait for it. What is missed here, ranks import themselves.
"""

from __future__ import annotations

import functools
import re
import sys
import sysconfig
from pathlib import Path
from typing import Final

from monarch_nb import late

SLOW: Final = ("torch", "numpy")
_PACKAGE: Final = str(Path(__file__).parents[1])
_IMPORTS: Final = re.compile(rf"^\s*(?:import|from)\s+({'|'.join(SLOW)})\b", re.MULTILINE)


def of_this_program() -> list[str]:
    """Return those that this process has loaded, or that its own code will import somewhere."""
    modules = sys.modules.copy()
    if "ipykernel" in modules or late.loaded(late.SPMD):
        return list(SLOW)  # for cells and scripts that nobody has seen yet
    found: set[str] = {name for name in SLOW if name in modules}
    for file in map(_file_of, modules.values()):
        if file is not None:
            found |= _imported_in(file)
    return sorted(found)


def _file_of(module: object) -> str | None:
    try:
        names: dict[str, object] = object.__getattribute__(module, "__dict__")  # loads none that
    except AttributeError:  # is lazy
        return None
    file = names.get("__file__")
    return file if isinstance(file, str) else None


@functools.cache
def _imported_in(file: str) -> frozenset[str]:
    if _is_library(file):
        return frozenset()
    try:
        return frozenset(_IMPORTS.findall(Path(file).read_text()))
    except (OSError, ValueError):  # no text: an extension, or gone
        return frozenset()


def _is_library(file: str) -> bool:
    return "-packages/" in file or file.startswith((_standard_library(), _PACKAGE))


@functools.cache
def _standard_library() -> str:
    return sysconfig.get_path("stdlib")
