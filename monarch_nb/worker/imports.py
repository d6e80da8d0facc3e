"""What is done to modules of others when they are imported, which may be long ago or never.

Rule: nothing is imported for this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


class _Finder:
    """Lets others find a module, and acts when it has run."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (act := self.actions.get(name)) is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                act(module)

            loader.exec_module = exec_module
        return spec


def when_imported(actions: dict[str, Action]) -> None:
    """Call the action of a module, now where it is imported already, else when it is."""
    finder: Any = _Finder()
    finder.actions.update(actions)
    sys.meta_path.insert(0, finder)
    for name, act in actions.items():
        if (module := sys.modules.get(name)) is not None:
            act(module)
