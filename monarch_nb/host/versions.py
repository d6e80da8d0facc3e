"""What is installed on a host, as far as another host has to have the same."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Final

from monarch_nb.config import VERSION

_OURS: Final = "monarch_nb"
_PYTHON: Final = "Python"
_COMPARED: Final = ("torch",)


def versions() -> dict[str, str]:
    """Return the versions of this process, by what they are of. Nothing is imported for it."""
    found = {_PYTHON: platform.python_version(), _OURS: VERSION}
    for name in _COMPARED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def why_unfit(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """Say why a host there cannot be used from here; None: it can.

    Functions travel as bytecode, which another minor version of Python cannot run.
    """
    if here.get(_OURS) != there.get(_OURS):
        return _differ(_OURS, here, there)
    if _minor(here.get(_PYTHON, "")) != _minor(there.get(_PYTHON, "")):
        return _differ(_PYTHON, here, there)
    return None


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """Say what else differs, though a host there can be used; None: nothing."""
    for name in _COMPARED:
        if here.get(name) != there.get(name):
            return _differ(name, here, there)
    return None


def _differ(name: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    ours, theirs = (each.get(name, "none") for each in (here, there))
    return f"{name} {theirs} is installed there, {ours} here: install the same version on both"


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
