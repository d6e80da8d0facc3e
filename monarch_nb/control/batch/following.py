"""What a run says, shown in a terminal until it is over. Who stops to look stops nothing."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from typing import Final

from monarch_nb.control.batch.run_record import CODES, KILLED, RunRecord

_POLL_S: Final = 0.1
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def follow(run: RunRecord) -> int:
    """Show all that it has said and says; the exit code says how it has ended."""
    with run.log.open(encoding="utf-8", errors="replace") as log:
        while True:
            now = run.now()
            _show(log.read())  # after it was asked: what it has said last is there
            if not now.is_alive():
                break
            time.sleep(_POLL_S)
    if now.state == KILLED:
        _show(f"{now.state}: {now.said}; {now.output} is as it was a moment before\n")
    return CODES[now.state]


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        text = _COLOURS.sub("", text)
    with contextlib.suppress(BrokenPipeError):  # nobody reads any more: `| head`
        sys.stdout.write(text)
        sys.stdout.flush()
