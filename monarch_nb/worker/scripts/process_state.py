"""What a script changes in its process, put back when it has ended: environment, folder, arguments,
import path, streams, handlers of the user's signals, the root logger; modules; `atexit`; groups.

Rules: a module is the script's if its package stands in the folder that is first in `sys.path`;
what the rank had loaded before any cell ran is a library, wherever it stands. Other settings of the
process (seeds, torch's defaults, warning filters) stay as the script leaves them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final, ParamSpec, TypeVar

from monarch_nb.core.errors.records import ErrorRecord
from monarch_nb.worker.groups import c10d
from monarch_nb.worker.groups.c10d import Group
from monarch_nb.worker.groups.process_groups import ProcessGroups

_NAMES: Final = ("argv", "stdin", "stdout", "stderr", "displayhook", "excepthook")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PRELOADED: Final = frozenset(sys.modules)

P = ParamSpec("P")
T = TypeVar("T")


class ProcessState:
    """As they are now. Main thread."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._names = {name: getattr(sys, name) for name in _NAMES}
        self._path = list(sys.path)
        self._main = sys.modules["__main__"]
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._log_handlers, self._log_level = list(logging.root.handlers), logging.root.level

    def put_back(self) -> None:
        for name in set(os.environ).difference(self._environment):
            del os.environ[name]
        os.environ.update(self._environment)
        os.fchdir(self._folder)
        os.close(self._folder)
        vars(sys).update(self._names)
        sys.path[:] = self._path
        sys.modules["__main__"] = self._main
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        logging.root.handlers[:] = self._log_handlers
        logging.root.setLevel(self._log_level)


class ScriptModules:
    """The modules beside the script: loaded anew by each run, and not those that cells use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of_cells = self._taken()

    def has(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top == "__main__":
            return True
        module = None if top in _PRELOADED else sys.modules.get(top)
        return module is not None and _home(module) == self._folder

    def put_back(self) -> None:
        self._taken()
        sys.modules.update(self._of_cells)

    def _taken(self) -> dict[str, ModuleType]:
        tops = {name.partition(".")[0] for name in sys.modules}
        own = {top for top in tops if top != "__main__" and self.has(top)}
        names = [name for name in sys.modules if name.partition(".")[0] in own]
        return {name: sys.modules.pop(name) for name in names}


def _home(module: ModuleType) -> Path | None:
    if module.__dict__.get("__file__") is not None:
        file = Path(str(module.__file__)).resolve()
        return file.parent.parent if file.name.startswith("__init__.") else file.parent
    parts = list(getattr(module, "__path__", ()))
    return Path(parts[0]).resolve().parent if parts else None


class AtExit:
    """What the script's own code wants to be called at its end; libraries live on."""

    def __init__(self, is_of_script: Callable[[str], bool]) -> None:
        self._is_of_script = is_of_script
        self._calls: list[tuple[object, Callable[[], object]]] = []
        self._originals = atexit.register, atexit.unregister
        vars(atexit).update(register=self._register, unregister=self._unregister)

    def close(self) -> None:
        register, unregister = self._originals
        vars(atexit).update(register=register, unregister=unregister)
        self._calls.clear()

    def run(self) -> None:
        """Run them, the last one first. What they raise is printed, as Python does."""
        while self._calls:
            name, call = self._calls.pop()
            try:
                call()
            except Exception as error:  # noqa: BLE001  the script's
                lines = ErrorRecord.from_exception(error).format()
                lines.insert(0, f"Exception ignored in atexit callback {name!r}:")
                print("\n".join(lines), file=sys.stderr)  # noqa: T201

    def _register(
        self, call: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> Callable[P, T]:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not self._is_of_script(caller):
            return self._originals[0](call, *args, **options)
        self._calls.append((call, partial(call, *args, **options)))
        return call

    def _unregister(self, call: Callable[..., object]) -> None:
        self._calls = [one for one in self._calls if one[0] != call]
        self._originals[1](call)


class CellGroups:
    """The process groups that cells have made, out of the script's sight until `put_back`.

    PyTorch keeps the groups of a process in tables of its own; while a script runs, those are empty
    for it. What it has left in them at its end is destroyed, as the end of its process would do.

    Each group that the script makes is referred to here until its other objects are gone: when a
    DDP model is the last to let go of a gloo group, PyTorch joins that group's threads while it
    holds the GIL, and they may need it.
    """

    def __init__(self, groups: ProcessGroups) -> None:
        self._groups = groups
        self._tables: dict[str, dict[Group, str]] = {}
        self._comms: list[object] = []
        self._default: Group | None = None
        self._count = 0
        self._method: object = None
        self._register: Callable[[str, Group], None] | None = None
        self._script_groups: list[Group] = []
        if (home := c10d.loaded()) is not None:
            self._take(home)

    def _take(self, home: ModuleType) -> None:
        world = home._world
        self._tables = {name: dict(getattr(world, name)) for name in c10d.TABLES}
        self._comms = list(getattr(world, "comms", ()))
        self._default, self._count = world.default_pg, world.group_count
        self._method = home._default_pg_init_method
        self._register = register = home._register_process_group

        def registered(name: str, group: Group) -> None:
            self._script_groups.append(group)
            register(name, group)

        vars(home)["_register_process_group"] = registered
        c10d.empty(home)

    def put_back(self, *, failed: bool) -> None:
        """End what the script has left behind, not waiting for its peers if it has `failed`."""
        home = c10d.loaded()
        if home is None:
            return
        self._groups.settle()
        _end(home, failed)
        c10d.empty(home)
        if self._register is not None:
            vars(home)["_register_process_group"] = self._register
        world = home._world
        for name, table in self._tables.items():
            getattr(world, name).update(table)
        if self._comms:
            world.comms.extend(self._comms)
        for group, name in self._tables.get("pg_names", {}).items():
            home._register_process_group(name, group)
        home._update_default_pg(self._default)
        vars(home)["_default_pg_init_method"] = self._method
        world.group_count = self._count

    def release(self) -> None:
        self._script_groups.clear()


def _end(home: ModuleType, failed: bool) -> None:
    if home._world.default_pg is None:
        return
    end = home._abort_process_group if failed else home.destroy_process_group
    with contextlib.suppress(Exception):  # peers may be gone: nobody is there to be told
        end()
