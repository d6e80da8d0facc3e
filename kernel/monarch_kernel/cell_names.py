"""What cells are called: files in a folder of this kernel's own, with names that JupyterLab knows.

ipykernel's folder, `ipykernel_<pid>` where everybody may write, can be there before ipykernel is.
"""

import os
from typing import Any, Final

from ipykernel.compiler import XCachingCompiler, get_tmp_hash_seed, murmur2_x86

from monarch_nb.debugger.cell_files import new_folder

_XCachingCompiler: Any = XCachingCompiler  # its types are incomplete

FOLDER: Final = new_folder()
PREFIX: Final = f"{FOLDER}{os.sep}"
SUFFIX: Final = ".py"


def cell_file(code: str) -> str:
    """Return the name of the file of a cell; `IPYKERNEL_CELL_NAME` takes its place, as in
    ipykernel."""
    given = os.environ.get("IPYKERNEL_CELL_NAME")
    return given or f"{PREFIX}{murmur2_x86(code, get_tmp_hash_seed())}{SUFFIX}"


class CellCompiler(_XCachingCompiler):  # type: ignore[misc]  # untyped base
    """Compiles cells under these names."""

    def get_code_name(self, raw_code: str, _code: str, _number: int) -> str:
        """Return what the frames of a cell say of where they are."""
        return cell_file(raw_code)
