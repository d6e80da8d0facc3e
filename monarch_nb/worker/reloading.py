"""A rank's side of `sync_workspace`: synced folders on `sys.path`, and modules loaded again.

Rules: paths change at once, in the inbox thread. Modules are loaded again on the main thread, after
what runs there and before what comes later: those whose file has changed, and those of the
workspace that import them, what is imported first. Objects made before keep their old class.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_nb.actors.sync_driver import Task
from monarch_nb.core.wire.messages.actors import Reloaded, WorkspaceSynced
from monarch_nb.meshes.synced import WORKSPACE_DIR, SyncedFolders

if TYPE_CHECKING:
    from monarch_nb.actors.sync_driver import WorkQueue
    from monarch_nb.core.wire.frames import Message
    from monarch_nb.process.process import Proc


class Workspaces:
    """The folders that were synced to this rank's host."""

    def __init__(self, proc: Proc, work: WorkQueue) -> None:
        self._proc = proc
        self._work = work

    def on_workspace(self, synced: WorkspaceSynced, message: Message) -> None:
        """Take the folders of a sync that has ended. Inbox thread."""
        landing = SyncedFolders(synced.root, dict(synced.pairs), synced.packages)
        os.environ[WORKSPACE_DIR] = landing.root
        sys.path[:] = landing.import_path(sys.path)
        importlib.invalidate_caches()
        if synced.reload:
            again = functools.partial(self._reload, synced.changed, landing, message)
            self._work.put((Task(again), None))
        else:
            self._proc.answer(message, Reloaded([], []))

    def _reload(self, changed: Sequence[str], landing: SyncedFolders, message: Message) -> None:
        # Load again, and tell. Main thread.
        reloaded, failed = reload_changed(changed, landing.pairs.values())
        self._proc.answer(message, Reloaded(reloaded, failed))


def reload_changed(
    changed: Iterable[str], tops: Iterable[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Load modules again whose files have changed; their names, and those that failed with why."""
    files = {os.path.realpath(each) for each in changed}
    modules = dict(_modules_below(tops))
    names = {name for name, file in modules.items() if file in files}
    for file in files:
        linecache.checkcache(file)
    reloaded, failed = [], []
    for name in in_order(names, {each: imports_of(each, modules) for each in modules}):
        try:
            if Path(modules[name]).exists():
                importlib.reload(sys.modules[name])
            else:
                _forget(name)
        except BaseException as error:  # noqa: BLE001  user code; anything may come out
            failed.append((name, f"{type(error).__name__}: {error}"))
        else:
            reloaded.append(name)
    return reloaded, failed


def _modules_below(tops: Iterable[str]) -> Iterable[tuple[str, str]]:
    folders = tuple(f"{os.path.realpath(top)}/" for top in tops)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.realpath(file).startswith(folders):
            yield name, os.path.realpath(file)


def _forget(name: str) -> None:
    # Its file is gone: the next import says so
    parent, _, tail = name.rpartition(".")
    sys.modules.pop(name, None)
    with contextlib.suppress(AttributeError, KeyError):
        delattr(sys.modules[parent], tail)


def imports_of(name: str, modules: Mapping[str, str]) -> set[str]:
    """Return which of `modules` the source of one of them imports."""
    try:
        tree = ast.parse(Path(modules[name]).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    package = getattr(sys.modules.get(name), "__package__", None) or ""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                with contextlib.suppress(ImportError):
                    base = importlib.util.resolve_name("." * node.level + base, package)
            found |= {base, *(f"{base}.{each.name}" for each in node.names)}
    return {each for each in found if each in modules} - {name}


def in_order(changed: Iterable[str], imports: Mapping[str, set[str]]) -> list[str]:
    """Sort the changed modules and all that import them: what is imported comes first."""
    affected: set[str] = set()
    more = set(changed)
    while more:
        affected |= more
        more = {name for name, needs in imports.items() if needs & affected} - affected
    found: dict[str, None] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name in found or name in above:
            return
        for need in sorted(imports.get(name, ())):
            if need in affected:
                visit(need, above | {name})
        found[name] = None

    for name in sorted(affected):
        visit(name, frozenset())
    return list(found)
