"""What a forked child does to be started by a command of the user's.

The command line is the user's from its first word to its last, and may run any program in between.
So what the rank must know waits in a file of the run dir, named by an environment variable; what
holds a process (session, tag, PDEATHSIG, processors) is arranged before the command runs and
survives it. The rest is done by the rank itself (`rank.py`).
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from monarch_nb.host import guard
from monarch_nb.host.rank import BOOT_VARIABLE
from monarch_nb.host.zygote import child

if TYPE_CHECKING:
    from monarch_nb.host.launch import Record


def execute(boot: Record, out: int, err: int, inherited: child.Inherited) -> NoReturn:
    """Replace this freshly forked child by the command in `boot`."""

    def run() -> int:
        if not guard.die_with_parent(signal.SIGKILL, inherited.zygote):
            return 1
        child.detach(boot, out, err)
        child.open_streams()
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python's are no program's
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _leave_record(boot, inherited)
        child.apply_settings(boot)
        os.environ[BOOT_VARIABLE] = str(record_path(boot))
        command = boot["command"]
        try:
            os.execv(command["program"], command["argv"])  # noqa: S606  that is the point
        except OSError as error:
            raise SystemExit(f"cannot execute {command['program']}: {error.strerror}") from error

    child.exit_after(run)


def record_path(boot: Record) -> Path:
    return Path(boot["run_dir"]) / f"{boot['proc']:016x}.boot"


def _leave_record(boot: Record, inherited: child.Inherited) -> None:
    zygote = {name: getattr(inherited, name) for name in ("zygote", "lifeline", "main", "preload")}
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(record_path(boot), flags, 0o600), "w") as file:
        json.dump({**boot, **zygote}, file)
