"""What a forked child does to be started by a command of the user's: shed the zygote, and execute.

The command line is the user's from its first word to its last, and what stands in between may be
any program. So what the rank must know waits in a file of the run dir, named by an environment
variable; and what holds a process (session, tag, PDEATHSIG, processors) is arranged before the
command runs and survives it. The ropes are tied again by the rank itself (`rank.py`).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

from monarch_nb.host import guard
from monarch_nb.host.rank import BOOT_VARIABLE
from monarch_nb.host.zygote import birth


def execute(boot: dict[str, Any], out: int, err: int, cradle: birth.Cradle) -> NoReturn:
    """Replace this freshly forked child by the command in `boot`."""

    def life() -> int:
        if not guard.die_with_parent(signal.SIGKILL, cradle.zygote):
            return 1
        birth.separate(boot, out, err)
        birth.open_streams()
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python's are no program's
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _leave_record(boot, cradle)
        birth.place(boot)
        os.environ[BOOT_VARIABLE] = str(record_path(boot))
        command = boot["command"]
        try:
            os.execv(command["program"], command["argv"])  # noqa: S606  that is the point
        except OSError as error:
            raise SystemExit(f"cannot execute {command['program']}: {error.strerror}") from error

    birth.end_with(life)


def record_path(boot: dict[str, Any]) -> Path:
    """The file that the rank reads, and removes."""
    return Path(boot["run_dir"]) / f"{boot['proc']:016x}.boot"


def _leave_record(boot: dict[str, Any], cradle: birth.Cradle) -> None:
    zygote = {name: getattr(cradle, name) for name in ("zygote", "lifeline", "main", "preload")}
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(record_path(boot), flags, 0o600), "w") as file:
        json.dump({**boot, **zygote}, file)
