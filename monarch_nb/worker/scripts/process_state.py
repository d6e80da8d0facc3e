"""What a script finds changed around it or changes itself, put back when it has ended: environment,
folder, arguments, import path, streams, handlers of the user's signals, the root logger.

Other settings of the process (seeds, torch's defaults, warning filters) stay as the script leaves
them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any, Final

_NAMES: Final = ("argv", "stdin", "stdout", "stderr", "displayhook", "excepthook")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Surroundings:
    """As they are now. Main thread."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._names: dict[str, Any] = {name: getattr(sys, name) for name in _NAMES}
        self._path = list(sys.path)
        self._main = sys.modules["__main__"]
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._log_handlers, self._log_level = list(logging.root.handlers), logging.root.level

    def put_back(self) -> None:
        """Once."""
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
