"""The modules beside a script: its own, not those that cells have loaded from the same files.

Rule of the file: a module is the script's if its package stands in the folder that is first in
`sys.path`. What the rank had loaded before any cell ran is a library, wherever it stands.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Final

_PRELOADED: Final = frozenset(sys.modules)


class Modules:
    """The modules beside the script: loaded anew by each run, and not those that cells use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_cells = self._taken()

    def has(self, name: str) -> bool:
        """Whether a module of this name is the script or lies beside it."""
        top = name.partition(".")[0]
        if top == "__main__":
            return True
        module = None if top in _PRELOADED else sys.modules.get(top)
        return module is not None and _home(module) == self._folder

    def put_back(self) -> None:
        """Forget those of the script."""
        self._taken()
        sys.modules.update(self._of_cells)

    def _taken(self) -> dict[str, ModuleType]:
        tops = {name.partition(".")[0] for name in sys.modules}
        own = {top for top in tops if top != "__main__" and self.has(top)}
        names = [name for name in sys.modules if name.partition(".")[0] in own]
        return {name: sys.modules.pop(name) for name in names}


def _home(module: ModuleType) -> Path | None:
    """The folder in which a top-level module was found."""
    if module.__dict__.get("__file__") is not None:
        file = Path(str(module.__file__)).resolve()
        return file.parent.parent if file.name.startswith("__init__.") else file.parent
    parts = list(getattr(module, "__path__", ()))
    return Path(parts[0]).resolve().parent if parts else None
