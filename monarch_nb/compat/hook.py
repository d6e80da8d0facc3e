"""How `import monarch...` finds what `names.py` serves.

Rule: a module or a name that is not served is missing as Python knows it: `find_spec` answers None,
`hasattr` False, imports fail.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from monarch_nb.compat import names
from monarch_nb.config import VERSION

VARIABLE: Final = "MONARCH_NB_COMPAT"
TOP: Final = "monarch"


class _Served(ModuleType):
    """A module whose names are looked up when they are first used."""

    def __getattr__(self, name: str) -> Any:
        found = _find(self.__name__, name)
        if name != "unhandled_fault_hook":  # a user's assignment must be told from the default
            vars(self)[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *names.SERVED[self.__name__]})

    def __reduce__(self) -> tuple[Any, ...]:
        return served, (self.__name__,)


def served(module: str) -> ModuleType:
    """Return a module of Monarch's, also in a process where nobody has asked for them before."""
    install()
    return importlib.import_module(module)


def _find(module: str, name: str) -> Any:
    home = names.SERVED[module].get(name)
    if home is not None:
        place, _, attribute = home.partition(":")
        found = importlib.import_module(place)
        return getattr(found, attribute) if attribute else found
    full = f"{module}.{name}"
    if _is_served(full):
        return importlib.import_module(full)
    raise AttributeError(f"module {module!r} of monarch_nb {VERSION} has no attribute {name!r}")


def _is_served(module: str) -> bool:
    return module in names.SERVED or module in names.SAME_MODULE


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] != TOP or not _is_served(fullname):
            return None  # and a real monarch is not found by others: `__path__` is empty
        is_package = any(
            other.startswith(f"{fullname}.") for other in (*names.SERVED, *names.SAME_MODULE)
        )
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=names.__file__, is_package=is_package
        )
        spec.has_location = True  # errors of imports show where to look
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if spec.name in names.SAME_MODULE:
            return None
        return _Served(spec.name, f"`{spec.name}` as monarch_nb serves it.")

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        same = names.SAME_MODULE.get(name)
        if same is not None:  # the import system takes what stands there now
            sys.modules[name] = importlib.import_module(same)
        elif names.SERVED[name]:
            vars(module)["__all__"] = sorted(names.SERVED[name])


def install() -> None:
    """Serve `monarch`. Raises `ImportError` if the real one has been imported before."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if TOP in sys.modules:
        raise ImportError(
            "another monarch has been imported already; import monarch_nb.compat before it"
        )
    sys.meta_path.insert(0, _Finder())
    os.environ[VARIABLE] = "1"  # ranks import the user's modules, which import monarch
