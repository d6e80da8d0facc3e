"""Python's log records say which actor wrote them: `[actor=<...>] ` in front of the message.

As in Monarch, in the client and in actors; cells and threads of a rank are none.
`config.prefix_python_logs_with_actor = False` switches it off in its process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from monarch_nb import config
from monarch_nb.process import current
from monarch_nb.process.instance import here


class _Before:
    make: Callable[..., logging.LogRecord] = logging.LogRecord


def install() -> None:
    found = logging.getLogRecordFactory()
    if found is not _marked:
        _Before.make = found
        logging.setLogRecordFactory(_marked)


def uninstall() -> None:
    if logging.getLogRecordFactory() is _marked:
        logging.setLogRecordFactory(_Before.make)


def _marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = _Before.make(*args, **kwargs)
    name = _writer() if config.prefix_python_logs_with_actor else ""
    if name:
        mark = f"[actor={name}] "
        record.msg = f"{mark.replace('%', '%%') if record.args else mark}{record.msg}"
    return record


def _writer() -> str:
    runtime = current.running()
    if runtime is None:
        return ""
    found = here.get()
    instance = runtime.root if found is None else found.instance
    is_rank = runtime.proc.id != runtime.proc.controller
    return "" if instance is runtime.root and is_rank else str(instance)
